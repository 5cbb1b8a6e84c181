#!/usr/bin/env bash
# mneme transcribe: forms of the result, several files, stdin, bad recordings and options; with a tiny random checkpoint, and with the real
# tiny.en where it is installed.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
data=$here/../data
tiny=$data/golden/whisper/tiny80
real=$MNEME_TEST_MODELS/whisper-tiny.en
speech=$data/audio/test_speech.wav
jfk=$data/audio/jfk.wav
few=(--max-new-tokens 6 --temperature 0)

json_of_a_file() {
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json
  err_empty
  json 'len(all) == 1 and j["file"].endswith("test_speech.wav") and j["text"] is None and abs(j["duration"] - 3.642) < 0.001'
  json 'j["language"] in ("en", "de", "es", "ja") and 0 < j["language_probability"] <= 1 and j["segments"]'
  json 'j["ids"] == [i for s in j["segments"] for i in s["ids"]] and all_of(s["end"] >= s["start"] >= 0 for s in j["segments"])'
  json 'all_of(s["avg_logprob"] < 0 and 0 <= s["no_speech_prob"] <= 1 and s["temperature"] == 0 and s["text"] is None for s in j["segments"])'
  cp "$work/out" "$work/first"
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --json --language "$(grep -oE '"language":"[a-z]+"' "$work/first" | cut -d'"' -f4)"
  json 'j["language_probability"] == 1'
}

several_files() {
  expect 0 transcribe -m "$tiny" "$speech" "$jfk" "${few[@]}" --output json
  json 'len(all) == 2 and all[0]["file"].endswith("test_speech.wav") and all[1]["file"].endswith("jfk.wav")'
  cp "$work/out" "$work/both"
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json
  cmp -s "$work/out" <(head -1 "$work/both") || problem "not as alone"
  expect 0 transcribe -m "$tiny" "$jfk" "$speech" "${few[@]}" --output json --batch-size 1
  cmp -s <(tac "$work/out") "$work/both" || problem "the order matters"
  expect 0 transcribe -m "$tiny" "$speech" "$jfk" "${few[@]}"
  [ "$(grep -cE '^==> .* <==$' "$work/out")" = 2 ] || problem "two headings"
}

a_bad_one_among_good_ones() {
  expect 1 transcribe -m "$tiny" "$work/nowhere.wav" "$speech" /dev/null "${few[@]}" --output json
  json 'len(all) == 3 and all[0]["error"]["code"] == "not_found" and all[2]["error"]["message"] and not all[0]["ids"]'
  json 'all[1]["ids"] and "error" not in all[1]'
  [ "$(wc -l <"$work/err")" = 2 ] || problem "two sentences"
  err_has "^mneme: .*nowhere.wav"
  expect 1 transcribe -m "$tiny" "$work/nowhere.wav"
  err_is_sentence
  out_empty
}

standard_input() {
  expect 0 transcribe -m "$tiny" "$jfk" "${few[@]}" --output json
  cp "$work/out" "$work/file"
  input=$jfk
  expect 0 transcribe -m "$tiny" - "${few[@]}" --output json
  cmp -s <(sed 's/"file":"[^"]*"//' "$work/out") <(sed 's/"file":"[^"]*"//' "$work/file") || problem "not as from the file"
  cat "$jfk" | "$mneme" transcribe -m "$tiny" - "${few[@]}" --output json >"$work/out" 2>"$work/err" || problem "a pipe failed"
  cmp -s <(sed 's/"file":"[^"]*"//' "$work/out") <(sed 's/"file":"[^"]*"//' "$work/file") || problem "not as from a pipe"
  input=''
  expect 2 transcribe -m "$tiny" - -
  err_has "can be read once"
}

formats_of_ffmpeg() {
  local bin=$work/bin
  mkdir "$bin" "$work/memos"
  printf '\0\0\0\040ftypM4A \0\0\0\0' >"$work/memos/-memo.m4a"
  printf '#!/bin/sh\ncat "%s"\n' "$jfk" >"$bin/ffmpeg"
  chmod +x "$bin/ffmpeg"
  expect 0 transcribe -m "$tiny" "$jfk" "${few[@]}" --output json
  cp "$work/out" "$work/wanted"
  cd "$work/memos" || return 1
  PATH=$bin:$PATH expect 0 transcribe -m "$tiny" "${few[@]}" --output json -- -memo.m4a
  cd - >/dev/null || return 1
  json 'j["file"] == "-memo.m4a"'
  cmp -s <(sed 's/"file":"[^"]*"//' "$work/out") <(sed 's/"file":"[^"]*"//' "$work/wanted") || problem "not as ffmpeg decodes it"
  printf '#!/bin/sh\necho no codec >&2\nexit 1\n' >"$bin/ffmpeg"
  PATH=$bin:$PATH expect 1 transcribe -m "$tiny" "$work/memos/-memo.m4a"
  err_is_sentence
  err_has 'ffmpeg cannot decode it: no codec'
}

subtitles() {
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output srt
  [ "$(head -1 "$work/out")" = 1 ] || problem "no first cue"
  out_has '^00:00:0[0-3],[0-9]{3} --> 00:00:0[0-3],[0-9]{3}$'
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output vtt
  [ "$(head -1 "$work/out")" = WEBVTT ] || problem "no head"
  out_has '^00:00:0[0-3]\.[0-9]{3} --> '
  expect 0 transcribe -m "$tiny" "$speech" "$jfk" "${few[@]}" --output srt --output-dir "$work/made"
  out_empty
  [ -s "$work/made/test_speech.srt" ] && [ -s "$work/made/jfk.srt" ] || problem "no files"
  expect 2 transcribe -m "$tiny" "$speech" --output srt --timestamps none
  err_is_sentence
}

# makes DIR FILE... a transcript of each; the names of what was made, sorted.
makes() {
  rm -rf "$work/named"
  expect 0 transcribe -m "$tiny" "$@" "${few[@]}" --output-dir "$work/named"
  (cd "$work/named" && LC_ALL=C ls -A | tr '\n' ' ') >"$work/out"
}

names_that_collide() {
  local files
  mkdir -p "$work/in/a/deep" "$work/in/b/deep" "$work/in/a-x"
  cp "$speech" "$work/in/a/x.wav"
  cp "$jfk" "$work/in/b/x.wav"
  cp "$jfk" "$work/in/b/x.flac"
  cp "$speech" "$work/in/a-x.wav"
  for folder in a b; do cp "$speech" "$work/in/$folder/deep/x.wav"; done
  cp "$speech" "$work/in/a/.hidden"
  ln -s b "$work/in/link"
  cd "$work/in" || return 1
  makes a/x.wav b/x.wav
  out_is 'a-x.txt b-x.txt '
  expect 0 transcribe -m "$tiny" a/x.wav "${few[@]}"
  cmp -s "$work/out" "$work/named/a-x.txt" || problem "not the transcript of a/x.wav"
  expect 0 transcribe -m "$tiny" b/x.wav "${few[@]}"
  cmp -s "$work/out" "$work/named/b-x.txt" || problem "not the transcript of b/x.wav"
  makes a/x.wav "$speech"
  out_is 'test_speech.txt x.txt '
  makes a/deep/x.wav b/deep/x.wav a/x.wav
  out_is 'a-deep-x.txt a-x.txt b-deep-x.txt '
  makes a/x.wav b/x.wav a-x.wav # the last has the name that the first one gets
  files=("$work"/named/*)
  [ ${#files[@]} = 3 ] || problem "not three files"
  makes b/x.wav b/x.flac ./b/x.wav link/x.wav "$work/in/b/x.wav"
  out_is 'x-2.txt x-3.txt x-4.txt x-5.txt x.txt '
  makes a/x.wav b/x.wav b/x.wav
  out_is 'a-x.txt b-x-2.txt b-x.txt '
  (cd a && makes x.wav ../b/x.wav .hidden)
  out_is '.hidden.txt a-x.txt b-x.txt '
  input=$speech
  makes - a/x.wav
  out_is 'stdin.txt x.txt '
  cd - >/dev/null || return 1
}

every_cache() {
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json --compute-type f32
  cp "$work/out" "$work/plain"
  for cache in static none offloaded self=static,cross=offloaded; do
    expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json --compute-type f32 --cache $cache
    cmp -s "$work/out" "$work/plain" || problem "$cache: not the same"
  done
  for cache in quantized self=quantized,cross=dynamic self=dynamic,cross=quantized; do
    expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json --cache $cache
    expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --output json --cache $cache --cache-config backend=hqq,nbits=8
  done
  expect 2 transcribe -m "$tiny" "$speech" --cache self=dynamic,cross=sink
  err_is_sentence
  # What is asked in vain, by a flag or by the checkpoint, is said once.
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --cache quantized --cache-config backend=quanto,compute_dtype=float16
  [ "$(wc -l <"$work/err")" = 1 ] || problem "not one warning"
  err_has 'warning: cache option compute_dtype has no effect'
  cp -r "$tiny" "$work/own"
  chmod -R u+w "$work/own"
  sed -i '1s/{/{"cache_implementation": "quantized", "cache_config": {"backend": "quanto", "device": "cuda"},/' "$work/own/generation_config.json"
  expect 0 transcribe -m "$work/own" "$speech" "${few[@]}"
  err_has "warning: cache option device is 'cuda' but has no effect"
}

bad_usage() {
  local arguments
  expect 2 transcribe -m "$tiny"
  err_is_sentence
  while read -r -a arguments; do
    expect 2 transcribe -m "$tiny" "$speech" "${arguments[@]}"
    err_is_sentence
    out_empty
  done <<'LIST'
--language Germn
--language fr
--task sing
--timestamps syllable
--timestamps word
--output docx
--temperature warm
--temperature 0.4,0.2
--num-beams 0
--hotwords Mneme
--logprob-threshold low
--vad-filter --vad-threshold 0
--vad-filter --vad-min-silence-ms -1
--vad-threshold 6
--vad-min-silence-ms 500
--vad-min-speech-ms 50
--speech-pad-ms 100
--json --output srt
--cache bogus
LIST
  expect 2 transcribe -m "$tiny" "$speech" --vad-filter false --min-silence-duration-ms 500
  err_has "^mneme: --vad-min-silence-ms 500 is given without --vad-filter$"
  expect 0 transcribe -m "$tiny" "$speech" "${few[@]}" --vad-filter --min-silence-duration-ms 500
  MNEME_VAD_THRESHOLD=6 expect 0 transcribe -m "$tiny" "$speech" "${few[@]}"
  expect 2 transcribe -m "$tiny" "$speech" --language Germn --json
  err_has "did you mean German"
  json '"German" in j["error"]["message"]'
  expect 3 transcribe -m "$work/nowhere" "$speech"
  err_is_sentence
  expect 3 transcribe "$speech"
  err_has "mneme pull"
}

models_of_the_other_kind() {
  expect 2 transcribe -m embedded "$speech"
  err_is_sentence
  err_has "text model.*Whisper"
  for command in run score; do
    expect 2 $command "$tiny" --ids 1,2,3
    sed -i '/ warning: generation_config.json has fields that have no effect here: forced_decoder_ids$/d' "$work/err"
    err_is_sentence
    err_has "speech model.*mneme transcribe"
  done
}

mel_bands_that_do_not_fit() {
  cp -r "$tiny" "$work/bands"
  chmod -R u+w "$work/bands"
  sed -i 's/"num_mel_bins": 80/"num_mel_bins": 100/' "$work/bands/config.json"
  expect 3 transcribe -m "$work/bands" "$speech"
  err_is_sentence
  err_has "100|80"
}

corner_cases() {
  expect 1 transcribe -m "$tiny" "$data"/wav-corner-cases/*.wav "${few[@]}" --output json
  json 'len(all) >= 20 and all_of(("error" in f) == (f["duration"] == 0) for f in all) and sum("error" not in f for f in all) >= 10'
}

noise_and_silence() {
  head -c 200000 /dev/zero >"$work/zeros"
  { printf 'RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\xff\xff\xff\x7f'; cat "$work/zeros"; } >"$work/silence.wav"
  { head -c 44 "$work/silence.wav"; head -c 200000 "$mneme"; } >"$work/noise.wav"
  : >"$work/empty.wav"
  expect 0 transcribe -m "$tiny" "$work/silence.wav" "$work/noise.wav" "${few[@]}" --output json
  json 'all_of(abs(f["duration"] - 6.25) < 0.01 for f in all)'
  expect 1 transcribe -m "$tiny" "$work/empty.wav"
  err_is_sentence
}

no_speech_is_left_out() {
  expect 0 transcribe -m "$tiny" "$work/silence.wav" "$work/noise.wav" "${few[@]}" --vad-filter --output json
  json 'all_of(f["duration"] == 6.25 for f in all) and all[0]["segments"] == [] and all[0]["ids"] == []'
  expect 0 transcribe -m "$tiny" "$work/silence.wav" --vad-filter --output vtt
  out_has '^WEBVTT$'
  { head -c 44 "$work/silence.wav"; cat "$work/zeros"; tail -c +45 "$jfk"; cat "$work/zeros"; } >"$work/spoken.wav"
  expect 0 transcribe -m "$tiny" "$work/spoken.wav" "${few[@]}" --vad-filter --vad-speech-pad-ms 0 --output json
  json 'len(j["segments"]) > 0 and all_of(6.2 < s["start"] <= s["end"] < 17.4 for s in j["segments"])'
  cp "$work/out" "$work/file"
  cat "$work/spoken.wav" | "$mneme" transcribe -m "$tiny" - "${few[@]}" --vad-filter --vad-speech-pad-ms 0 --output json >"$work/out" 2>"$work/err" ||
    problem "a pipe failed"
  cmp -s <(sed 's/"file":"[^"]*"//' "$work/out") <(sed 's/"file":"[^"]*"//' "$work/file") || problem "not as from the file"
}

real_text() {
  [ -d "$real" ] || { uncounted=1; return 0; }
  expect 0 transcribe -m "$real" "$jfk" --threads 2
  out_has '^And so my fellow Americans'
  out_has 'ask what you can do for your country\.$'
  expect 0 transcribe -m "$real" "$jfk" --compute-type f32 --timestamps none --output json
  json 'j["language"] == "en" and len(j["segments"]) == 1 and j["segments"][0]["end"] == 11'
  json 'j["ids"] == [843,523,616,5891,3399,1265,407,644,534,1499,460,466,329,345,11,1265,644,345,460,466,329,534,1499,13]'
}

real_hotwords() {
  [ -d "$real" ] || { uncounted=1; return 0; }
  expect 0 transcribe -m "$real" "$speech" --temperature 0 --compute-type f32
  out_has 'test of the Vaux-Troll '
  expect 0 transcribe -m "$real" "$speech" --temperature 0 --compute-type f32 --hotwords Voxtral
  out_has 'test of the Voxtral '
}

real_words() {
  [ -d "$real" ] || { uncounted=1; return 0; }
  expect 0 transcribe -m "$real" "$jfk" --compute-type f32 --timestamps word --output json
  json '"".join(w["word"] for s in j["segments"] for w in s["words"]) == j["text"]'
  json 'all_of(w["end"] >= w["start"] for s in j["segments"] for w in s["words"])'
  # By listening: "Americans" around 1.8 s, "what" at its end around 5.7 s, after a pause.
  json 'all_of(w["start"] <= 1.8 <= w["end"] for s in j["segments"] for w in s["words"] if w["word"] == " Americans")'
  json '[5.4 <= w["end"] <= 6 for s in j["segments"] for w in s["words"] if w["word"] == " what"][0]'
  expect 2 transcribe -m "$real" "$jfk" --language es
  err_has "English-only"
  expect 2 transcribe -m "$real" "$jfk" --task translate
  err_is_sentence
}

check "JSON of a file" json_of_a_file
check "several files" several_files
check "a bad one among good ones" a_bad_one_among_good_ones
check "standard input" standard_input
check "formats of ffmpeg" formats_of_ffmpeg
check "subtitles" subtitles
check "names that collide" names_that_collide
check "every cache" every_cache
check "bad usage" bad_usage
check "models of the other kind" models_of_the_other_kind
check "mel bands that do not fit" mel_bands_that_do_not_fit
check "corner cases" corner_cases
check "noise and silence" noise_and_silence
check "no speech is left out" no_speech_is_left_out
check "real text" real_text
check "real hotwords" real_hotwords
check "real words" real_words
finish
