"""What the notebooks share: Transformers where it is installed, else one sentence.
SPDX-License-Identifier: Apache-2.0"""
import os
import warnings

os.environ.setdefault("TQDM_DISABLE", "1")  # no bar in the output of a cell
warnings.filterwarnings("ignore")
try:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_grad_enabled(False)
except ImportError:
    torch = transformers = None
    print("Transformers is not installed: the cells that compare with it are skipped")


def load_transformers(path):
    """The model of a GGUF file in f32."""
    folder, name = os.path.split(path)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, torch_dtype=torch.float32)
