# The parts of `scripts/test --long` that are more than one build with its tests. Sourced by scripts/test, which counts what they add to
# passed, failed and skipped.
# shellcheck shell=bash disable=SC2154

# Counts a part that cannot be run here. usage: skip_part PART WHY
skip_part() {
  echo "  $2: skipped"
  skipped=$((skipped + 1))
  not_run+=("$1")
}

# Every fuzzer for a minute from its seeds, as many at a time as there are processors.
fuzz() {
  local name names=()
  echo "== fuzz"
  for name in tests/fuzz/fuzz_*.c; do names+=("$(basename "$name" .c)"); done
  build fuzz build_fuzzers "${names[@]}" || return 0
  for name in "${names[@]}"; do
    while [ "$(jobs -r | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    run_fuzzer "$name" &
  done
  wait
  for name in "${names[@]}"; do
    if [ "$(cat "$work/$name code")" = 0 ]; then
      passed=$((passed + 1))
      echo "  $name: $(tail -1 "$work/$name")"
    else
      grep -m 1 -A 40 '^==[0-9]*==ERROR: \|runtime error: ' "$work/$name" || tail -20 "$work/$name" # the stack is not at the end
      fail_case "$name" "$work/$name"
    fi
  done
}

build_fuzzers() { # build_fuzzers NAME...
  cmake -S . -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang-14 -DMNEME_FUZZ=ON -DMNEME_LEVELS=OFF -DBUILD_TESTING=ON \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo && cmake --build build/fuzz -j "$jobs" --target "$@"
}

# Leaves the fuzzer's output and exit code in $work. usage: run_fuzzer NAME
run_fuzzer() {
  local code=0
  mkdir -p "build/fuzz/found/$1"
  (cd build/fuzz && exec "./$1" -max_total_time=60 -rss_limit_mb=4096 "found/$1" "../../tests/fuzz/corpus/${1#fuzz_}") >"$work/$1" 2>&1 || code=$?
  echo "$code" >"$work/$1 code"
}

# Checks of sources and coverage, one case each. usage: examine COMMAND [arguments]
examine() {
  echo "== $*"
  if "$@" 2>&1 | tee "$work/examine"; then passed=$((passed + 1)); else fail_case "$1" "$work/examine"; fi
}

check_with_valgrind() {
  echo "== valgrind"
  if scripts/build mneme && valgrind -q --error-exitcode=1 --suppressions=tests/valgrind.supp --leak-check=full --errors-for-leak-kinds=definite,indirect,possible \
    build/release/mneme run embedded "Once upon a time" --max-new-tokens 20 2>&1 >/dev/null | tee "$work/valgrind"; then
    passed=$((passed + 1))
  else
    fail_case valgrind "$work/valgrind"
  fi
}

# The official clients of the server's dialects, by name from the Python package index, in a virtual environment that is kept.
check_clients() {
  local env=${XDG_CACHE_HOME:-$HOME/.cache}/mneme/clients log=$work/clients model
  echo "== clients"
  if ! { { [ -x "$env/bin/pip" ] || python3 -m venv "$env"; } && "$env/bin/pip" install -q --upgrade openai anthropic huggingface_hub langchain-openai openai-agents prometheus_client &&
    { [ -x "$env-litellm/bin/pip" ] || python3 -m venv "$env-litellm"; } && "$env-litellm/bin/pip" install -q --upgrade litellm; } >"$log" 2>&1; then
    tail -3 "$log"
    skip_part clients "the clients could not be installed"
  elif scripts/build mneme >"$log" 2>&1; then
    "$env/bin/pip" list 2>/dev/null | grep -E '^(openai|anthropic|huggingface_hub|langchain-openai|openai-agents|prometheus_client) ' | sed 's/^/  /'
    for model in tiny ${MNEME_TEST_SMOLLM2:+"$MNEME_TEST_SMOLLM2"}; do
      "$env/bin/python" tests/serve/clients.py build/release/mneme "$model" --only '^(?!litellm)' >"$log" 2>&1 || true
      cat "$log"
      add_counts "$log" clients
      # It asks for older releases of the others.
      "$env-litellm/bin/python" tests/serve/clients.py build/release/mneme "$model" --only '^litellm' >"$log" 2>&1 || true
      cat "$log"
      add_counts "$log" clients
    done
  else
    tail -20 "$log"
    fail_case "clients: the build" "$log"
  fi
}

# The Python package: its types and reference, and a wheel of it, built from its sdist and tried in an environment of its own.
check_wheel() {
  local log=$work/wheel code=0
  echo "== wheel"
  tools/python_check >"$log" 2>&1 || code=$?
  case $code in
    0) passed=$((passed + 1)) ;;
    77) skip_part "wheel: types and docs/python.md" "mypy, pyright and griffe could not be installed" ;;
    *)
      tail -20 "$log"
      fail_case "wheel: types and docs/python.md" "$log"
      ;;
  esac
  if ! { python3 -m venv "$work/pip" && "$work/pip/bin/pip" download -q --no-deps -d "$work" auditwheel; } >"$log" 2>&1; then
    tail -3 "$log"
    skip_part wheel "the Python package index could not be reached"
  elif scripts/wheel --sdist "$work/dist" >"$log" 2>&1; then
    tail -1 "$log"
    passed=$((passed + 1))
  else
    tail -20 "$log"
    fail_case wheel "$log"
  fi
}

# The notebooks of examples/, with packages by name from the Python package index, in a virtual environment that is kept. Transformers is not
# among them: the cells that compare with it are skipped.
check_notebooks() {
  local env=${XDG_CACHE_HOME:-$HOME/.cache}/mneme/notebooks models=${MNEME_MODELS:-${XDG_DATA_HOME:-$HOME/.local/share}/mneme/models} log=$work/notebooks
  echo "== notebooks"
  if [ -z "${MNEME_TEST_SMOLLM2:-}" ] || [ ! -e "$models/whisper-base" ]; then
    skip_part notebooks "without SmolLM2 or whisper-base"
  elif ! { { [ -x "$env/bin/pip" ] || python3 -m venv "$env"; } && "$env/bin/pip" install -q --upgrade nbclient ipykernel matplotlib numpy gguf; } >"$log" 2>&1; then
    tail -3 "$log"
    skip_part notebooks "the packages could not be installed"
  elif scripts/build mneme libmneme >"$log" 2>&1; then
    scripts/notebooks --check --python "$env/bin/python" >"$log" 2>"$work/warnings" || cat "$work/warnings"
    cat "$log"
    add_counts "$log" notebooks
  else
    tail -20 "$log"
    fail_case "notebooks: the build" "$log"
  fi
}

# Requests made from the server's own description, by Schemathesis from the Python package index.
check_api() {
  local env=${XDG_CACHE_HOME:-$HOME/.cache}/mneme/api log=$work/api
  echo "== api"
  if ! { { [ -x "$env/bin/pip" ] || python3 -m venv "$env"; } && "$env/bin/pip" install -q --upgrade schemathesis; } >"$log" 2>&1; then
    tail -3 "$log"
    skip_part api "Schemathesis could not be installed"
  elif scripts/build mneme >"$log" 2>&1; then
    "$env/bin/schemathesis" --version | sed 's/^/  /'
    "$env/bin/python" tests/serve/api.py build/release/mneme >"$log" 2>&1 || true
    cat "$log"
    add_counts "$log" api
  else
    tail -20 "$log"
    fail_case "api: the build" "$log"
  fi
}

# The server's page in Chromium.
check_page() {
  local log=$work/page
  echo "== page"
  if [ -z "${MNEME_TEST_SMOLLM2:-}" ] || ! scripts/deps page >"$log" 2>&1; then
    skip_part page "without SmolLM2 or Chromium"
  elif scripts/build mneme >"$log" 2>&1; then
    python3 tests/serve/page_browser.py build/release/mneme "$MNEME_TEST_SMOLLM2" >"$log" 2>&1 || true
    cat "$log"
    add_counts "$log" page
  else
    tail -20 "$log"
    fail_case "page: the build" "$log"
  fi
}

# The short tier on other processors: fewer or more of them, without their best instructions.
check_processors() {
  echo "== processors"
  build processors build_preset release || return 0
  check_counts
  check_levels
}

# With that many processors: bound to them where the machine has more, else with that many shown. Every other part runs with those of the machine.
check_counts() {
  local n shown around
  for n in 1 2 8 64; do
    [ "$n" != "$(nproc)" ] || continue
    if [ "$n" -le "$(nproc)" ]; then
      around=(python3 -c 'import os, sys; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])]); os.execvp(sys.argv[2], sys.argv[2:])' "$n")
    else
      cp "build/release/processors_$n.so" "$work" # LD_PRELOAD ends at a space, which this folder may have in its name
      around=(env "LD_PRELOAD=$work/processors_$n.so")
    fi
    echo "-- $n processors"
    shown=$("${around[@]}" build/release/mneme inspect --kernels --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["cores"])') || shown=none
    if [ "$shown" = "$n" ]; then
      run_tests "$n processors" build/release "${around[@]}" ctest
    else
      echo "mneme counts $shown processors, not $n" >"$work/tests"
      fail_case "$n processors" "$work/tests"
    fi
  done
}

# With every CPU level as the highest: tests whose results depend on it, in a build that is linked anew for each. Every other part runs with
# the best one of the machine. The scalar kernels run without trained models, which take them a quarter of an hour.
check_levels() {
  local level found around
  found=$(build/release/mneme inspect --kernels --json)
  for level in scalar avx2 avx512 avx512_dot neon; do
    [[ $found != *"\"cpu\":\"$level\""* ]] || continue
    echo "-- $level"
    if [[ ${found%%]*} != *"\"$level\""* ]]; then
      skip_part "processors: $level" "this machine has no $level"
    elif ! build "$level" build_level "$level"; then
      continue
    elif [[ $(build/levels/mneme inspect --kernels --json) = *"\"cpu\":\"$level\""* ]]; then
      around=()
      [ "$level" != scalar ] || around=(env -u MNEME_TEST_SMOLLM2 MNEME_MODELS="$work/no models")
      run_tests "$level" build/levels "${around[@]}" ctest -L '^(kernels|kv|model|gen|engine|session|golden|cli)$'
    else
      echo "mneme does not run with $level" >"$work/tests"
      fail_case "$level" "$work/tests"
    fi
  done
}

build_level() { # build_level LEVEL
  cmake --preset release -B build/levels -G Ninja -DBUILD_TESTING=ON -DMNEME_HIGHEST_LEVEL="$1" && cmake --build build/levels -j "$jobs"
}

# A copy of the clone without what was built. usage: copy_clone FOLDER
copy_clone() {
  mkdir -p "$1"
  tar -c --exclude=./build --exclude=./.git . | tar -x -C "$1"
}

# usage: build_copy FOLDER [COMMAND [arguments]], which runs the build
build_copy() {
  local folder=$1
  shift
  "$@" env -C "$folder" sh -c 'cmake --preset release -G Ninja -DBUILD_TESTING=ON && cmake --build build/release -j "$0"' "$jobs"
}

# The short tier of an ordinary user, and of one who is root in a user namespace. Root runs both as `nobody`, in a copy with the models.
check_users() {
  local clone=$PWD user=() models=${MNEME_MODELS:-${XDG_DATA_HOME:-$HOME/.local/share}/mneme/models}
  echo "== users"
  if [ "$(id -u)" = 0 ]; then
    clone=$work/users/mneme user=(setpriv --reuid nobody --regid nogroup --clear-groups env HOME="$work/users" MNEME_MODELS="$work/users/models")
    copy_clone "$clone"
    [ ! -d "$models" ] || cp -rL "$models" "$work/users/models"
    user+=(${MNEME_TEST_SMOLLM2:+MNEME_TEST_SMOLLM2="$work/users/models/${MNEME_TEST_SMOLLM2##*/}"})
    chmod 711 "$work"
    chown -R nobody:nogroup "$work/users"
  fi
  build users build_copy "$clone" "${user[@]}" || return 0
  [ "$(id -u)" != 0 ] || run_tests "an ordinary user" "$clone/build/release" "${user[@]}" ctest
  if "${user[@]}" unshare -r true; then
    run_tests "root of a user namespace" "$clone/build/release" "${user[@]}" unshare -r ctest
  else
    skip_part "users: namespace" "the system allows no user namespaces"
  fi
}

# The short tier of two clones at once, in folders 200 characters deep that have a space and letters beyond ASCII in their names. TMPDIR
# has a space and is a link, as /var/tmp is where the system allows mounts in a namespace.
check_folders() {
  local clone place p f s around
  place="$work/a clone/größer 文件/$(printf '%0160d' 0)"
  echo "== folders"
  mkdir -p "$work/some where" "$work/var"
  ln -s "$work/some where" "$work/a link"
  ln -s "$work/a link" "$work/var/tmp"
  around=(unshare -rm sh -c 'mount -t overlay -o "lowerdir=$0:/var" none /var && exec "$@"' "$work/var")
  [ "$(id -u)" != 0 ] || around[1]=-m
  "${around[@]}" true || {
    skip_part "folders: /var/tmp as a link" "the system allows no mounts in a namespace"
    around=()
  }
  for clone in first second; do
    copy_clone "$place/$clone"
    build "$clone clone" build_copy "$place/$clone" || return 0
  done
  for clone in first second; do
    (
      passed=0 failed=0 skipped=0
      run_tests "$clone clone" "$place/$clone/build/release" "${around[@]}" env TMPDIR="$work/a link" ctest >"$work/$clone"
      echo "$passed $failed $skipped" >"$work/$clone counts"
    ) &
  done
  wait
  for clone in first second; do
    cat "$work/$clone"
    read -r p f s <"$work/$clone counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  done
}

# The short tier five times beside two busy processes.
check_repeatedly() {
  local round busy=()
  echo "== repeat"
  build repeat build_preset release || return 0
  for _ in 1 2; do
    while kill -0 $$ 2>/dev/null; do :; done &
    busy+=($!)
  done
  for round in 1 2 3 4 5; do run_tests "repeat $round" build/release ctest; done
  kill "${busy[@]}"
}
