"""Text in, token ids out, and back: the tokenizer, chat template, streaming.

Everything is read from the files of a Hugging Face model folder through the
`tokenizers` package alone; transformers takes seconds to import and is never
needed here.
"""

from specjax.text.files import read_json
from specjax.text.streaming import Detokenizer, StopStrings
from specjax.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "StopStrings", "Tokenizer", "read_json"]
