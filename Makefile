# specjax: `make demo` is the place to start, `make test` the place to stay.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
MODEL := .cache/smollm2
BENCHMARK = $(BIN)/specjax-benchmark --model=$(MODEL) --chat \
  --prompts=demo/repeating.jsonl --capacity=512

.PHONY: install demo speed model test test-long lab test-lab lint format clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python demo/run.py

# What speculation gains on prompts that repeat their input, in both dtypes.
speed: model
	$(BENCHMARK) --dtype=bfloat16 --lookahead=5
	$(BENCHMARK) --dtype=float32 --lookahead=6

# SmolLM2-135M as a Hugging Face folder, for the demo and for the tests.
model: $(VENV)/.installed
	$(BIN)/python demo/smollm2.py $(MODEL)

test: $(VENV)/.tested model
	$(BIN)/python -m pytest -q -n 2 --dist=loadfile $(PYTEST_ARGS)

test-long: $(VENV)/.tested model
	$(BIN)/python -m pytest -q -m long $(PYTEST_ARGS)

# The TPU compiler (libtpu, as the installed jax pins it); it needs no TPU.
lab: $(VENV)/.tested
	$(PIP) install -e ".[lab]"

# A small pair, compiled for a v4 and a v5e slice.
test-lab: lab
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) \
	  tests/lab/rows_test.py::test_the_step_is_in_place_and_moves_little_more_than_it_must

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .cache build *.egg-info

# What the demo needs and no more: a fresh clone should talk soon.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e ".[gguf]"
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install -e ".[gguf,test]"
	touch $@
