"""Reading and writing checkpoints: Hugging Face folders and GGUF files."""
