#!/usr/bin/env bash
# scripts/convert-whisper: a small model in CTranslate2's container, intact and damaged, against its original tensors.
# shellcheck source-path=SCRIPTDIR disable=SC2317
source "$(dirname "$0")/lib.sh"
convert=$here/../../scripts/convert-whisper

# make FOLDER [DEFECT]: a model of width 4 with one layer a side. Every weight of the new file is written down in FOLDER.json.
make() {
  python3 - "$@" <<'PYTHON'
import json, os, random, struct, sys
folder, defect = sys.argv[1], (sys.argv[2:] + [""])[0]
os.makedirs(folder, exist_ok=True)
random.seed(1)
variables, wanted = [], {}
def text(s):
    b = s.encode() + b"\0"
    return struct.pack("<H", len(b)) + b
def values(shape):
    n = 1
    for size in shape: n *= size
    return b"".join(struct.pack("<e", random.uniform(-1, 1)) for _ in range(n))
def put(name, shape, targets, blank=None):
    """targets: names of the new tensors that share the rows; blank: the one whose values are zero and which is dropped."""
    data = b""
    for target in targets:
        part = [shape[0] // len(targets)] + shape[1:]
        piece = values(part)
        if target == blank:
            piece = bytes(len(piece)) if defect != "key-bias" else piece
        else:
            wanted["model." + target] = [part, piece.hex()]
        data += piece
    variables.append((name, shape, 4, data))
def linear(name, targets, out, inner, blank=None):
    put(name + "/weight", [out, inner], [t + ".weight" for t in targets])
    put(name + "/bias", [out], [t + ".bias" for t in targets], blank and blank + ".bias")
def norm(name, target):
    put(name + "/gamma", [4], [target + ".weight"])
    put(name + "/beta", [4], [target + ".bias"])
put("encoder/conv1/weight", [4, 3, 3], ["encoder.conv1.weight"])
put("encoder/conv1/bias", [4], ["encoder.conv1.bias"])
put("encoder/conv2/weight", [4, 4, 3], ["encoder.conv2.weight"])
put("encoder/conv2/bias", [4], ["encoder.conv2.bias"])
put("decoder/embeddings/weight", [300, 4], ["decoder.embed_tokens.weight"])
for side, rows in (("encoder", 10), ("decoder", 6)):
    put(side + "/position_encodings/encodings", [rows, 4], [side + ".embed_positions.weight"])
    layer, new = side + "/layer_0/", side + ".layers.0."
    norm(layer + "self_attention/layer_norm", new + "self_attn_layer_norm")
    linear(layer + "self_attention/linear_0", [new + "self_attn." + x + "_proj" for x in "qkv"], 12, 4, new + "self_attn.k_proj")
    linear(layer + "self_attention/linear_1", [new + "self_attn.out_proj"], 4, 4)
    if side == "decoder":
        norm(layer + "attention/layer_norm", new + "encoder_attn_layer_norm")
        linear(layer + "attention/linear_0", [new + "encoder_attn.q_proj"], 4, 4)
        linear(layer + "attention/linear_1", [new + "encoder_attn." + x + "_proj" for x in "kv"], 8, 4, new + "encoder_attn.k_proj")
        linear(layer + "attention/linear_2", [new + "encoder_attn.out_proj"], 4, 4)
    norm(layer + "ffn/layer_norm", new + "final_layer_norm")
    linear(layer + "ffn/linear_0", [new + "fc1"], 8, 4)
    linear(layer + "ffn/linear_1", [new + "fc2"], 4, 8)
    norm(side + "/layer_norm", side + ".layer_norm")
    variables.append((side + "/num_heads", [], 2, struct.pack("<h", 2)))
if defect == "unknown": variables.append(("encoder/gate", [4], 4, values([4])))
if defect == "int8": variables[0] = (variables[0][0], variables[0][1], 1, bytes(36))
if defect == "shape": variables[0] = (variables[0][0], [4, 3, 4], 4, variables[0][3])
model = struct.pack("<I", 9 if defect == "version" else 6)
model += text("TransformerSpec" if defect == "kind" else "WhisperSpec") + struct.pack("<II", 3, len(variables))
for name, shape, kind, data in variables:
    model += text(name) + struct.pack("<B%dIBI" % len(shape), len(shape), *shape, kind, len(data)) + data
model += struct.pack("<I", 1) + text("decoder/projection/weight")
model += text("encoder/conv1/bias" if defect == "untied" else "decoder/embeddings/weight")
if defect == "cut": model = model[:-300]
if defect == "tail": model += b"x"
half = len(model) // 2 + 1 # inside a tensor
for i, part in enumerate((model[:half], model[half:])):
    if defect != "part" or i == 1:
        with open(f"{folder}/model.bin.part{i + 1}", "wb") as f: f.write(part)
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(68)]
special = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
           "<|nospeech|>", "<|notimestamps|>"]
if defect == "special": special[2] = special[7] = "<|x|>"
tokenizer = {"added_tokens": [{"id": 258 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                               "special": True} for i, s in enumerate(special)],
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
             "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "vocab": {s: i for i, s in enumerate(letters + ["\u0120t", "\u0120a"])},
                       "merges": ["\u0120 a"]}} # the first is lost
json.dump(tokenizer, open(folder + "/tokenizer.json", "w"))
config = {"suppress_ids": [1, 2], "suppress_ids_begin": [220], "alignment_heads": [[0, 1]], "lang_ids": [260]}
if defect == "lists": del config["suppress_ids"]
json.dump(config, open(folder + "/config.json", "w"))
json.dump(wanted, open(folder + ".json", "w"))
PYTHON
}

whole_model() {
  last=convert-whisper
  make "$work/ct2"
  "$convert" "$work/ct2" "$work/hf" || problem "it failed"
  python3 - "$work" <<'PYTHON' || problem "other weights or settings"
import json, os, struct, sys
work = sys.argv[1]
wanted = json.load(open(work + "/ct2.json"))
with open(work + "/hf/model.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
assert header.pop("__metadata__") == {"format": "pt"}
assert sorted(header) == sorted(wanted), sorted(set(header) ^ set(wanted))
for name, entry in header.items():
    begin, end = entry["data_offsets"]
    assert [entry["shape"], data[begin:end].hex(), entry["dtype"]] == wanted[name] + ["F16"], name
config = json.load(open(work + "/hf/config.json"))
assert (config["model_type"], config["d_model"], config["encoder_layers"], config["decoder_attention_heads"], config["encoder_ffn_dim"],
        config["num_mel_bins"], config["vocab_size"], config["max_source_positions"], config["max_target_positions"]) == \
    ("whisper", 4, 1, 2, 8, 3, 300, 10, 6)
generation = json.load(open(work + "/hf/generation_config.json"))
assert generation["no_timestamps_token_id"] == 265 and generation["prev_sot_token_id"] == 263
assert generation["suppress_tokens"] == [1, 2] and generation["alignment_heads"] == [[0, 1]]
assert sorted(os.listdir(work)) and not [n for n in os.listdir(work) if n.startswith(".convert")]
PYTHON
  expect 0 tokenize "$work/hf" -p ' tat' --no-special-tokens --json
  json 'j["ids"] == [256, 64, 83]' # the merge that was lost is there
  expect 0 tokenize "$work/hf" --ids 266,256,268 --decode && out_is '<|0.00|> t<|0.04|>'
}

# refuses DEFECT SENTENCE: one sentence, and nothing is left.
refuses() {
  last="convert-whisper of a model with the defect '$1'"
  make "$work/bad" "$1"
  if "$convert" "$work/bad" "$work/never" 2>"$work/err"; then problem "it did not fail"; fi
  err_has "^scripts/convert-whisper: .*$2"
  [ "$(wc -l <"$work/err")" = 1 ] || problem "not one line"
  [ ! -e "$work/never" ] || problem "a folder was left"
  [ -z "$(find "$work" -maxdepth 1 -name '.convert*')" ] || problem "a temporary folder was left"
  rm -rf "$work/bad"
}

damaged_models() {
  refuses cut 'ends inside'
  refuses tail 'has data after the model'
  refuses part 'parts of model.bin are missing'
  refuses version 'has version 9'
  refuses kind "holds a?.?'TransformerSpec'"
  refuses unknown 'nothing is known of the variable encoder/gate'
  refuses int8 'is of type I8'
  refuses shape 'do not fit'
  refuses key-bias 'not zero for the keys'
  refuses untied 'output matrix is not that of the embeddings'
  refuses special 'has no <.notimestamps.>'
  refuses lists "has no list 'suppress_ids'"
}

nothing_is_overwritten() {
  last=convert-whisper
  make "$work/ct2"
  mkdir "$work/there"
  if "$convert" "$work/ct2" "$work/there" 2>"$work/err"; then problem "it did not fail"; fi
  err_has 'exists already'
  if "$convert" "$work/nowhere" "$work/never" 2>"$work/err"; then problem "it did not fail"; fi
  err_has 'neither a folder nor a zip file'
}

if [ $have_python = 0 ]; then
  echo "[  SKIPPED ] 3 test(s)."
  exit 0
fi
check "a whole model" whole_model
check "damaged models" damaged_models
check "nothing is overwritten" nothing_is_overwritten
finish
