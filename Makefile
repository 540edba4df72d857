# make demo   - set-up, then the demo: a game and a language model share one VRAM budget
# make test   - set-up, then the whole test suite (native with sanitizers, unit, integration)
# make bench  - measures, also against stock llama.cpp, and rewrites docs/benchmarks.md
# make lint   - ruff, mypy --strict, import-linter, clang-format, generated files
# make setup  - only the set-up: .venv with everything the others need
# make gpu-kit - packs build/gpu-kit/xlm-gpu-kit.tar.gz for a machine with an NVIDIA card
# make clean  - removes build/ and .venv/

PYTHON ?= python3
BIN    := .venv/bin
export OMP_WAIT_POLICY ?= passive
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
# Test files run side by side in two processes: most of a test is waiting for a start or an answer. More would need more
# memory (each may have a broker, an engine and a model), and their engines would wait for each other's cores.
WORKERS ?= 2
CXX_FILES = $(shell git ls-files -co --exclude-standard 'native/**/*.cpp' 'native/**/*.hpp' 'native/**/*.h' 'tests/native/*.cpp' 'tests/native/*.hpp' 'tests/gpu/**/*.cpp' 'tests/gpu/**/*.hpp')

.PHONY: demo test test-native test-python bench lint format setup setup-demo gpu-kit clean help

help:
	@sed -n 's/^# make/make/p' Makefile

setup:
	@$(PYTHON) .ci/setup.py --for test

setup-demo:
	@$(PYTHON) .ci/setup.py --for demo

demo: setup-demo
	@$(BIN)/xlm demo --out build/demo $(ARGS)

test: setup test-native test-python

NATIVE_FLAGS = -S native -G Ninja -DXLM_BUILD_TESTS=ON -DPython3_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
test-native: setup
	@for s in address thread; do \
	  echo "== native tests, $$s sanitizer"; \
	  $(BIN)/cmake -B build/native-$$s $(NATIVE_FLAGS) -DXLM_SANITIZE=$$s > build/cmake-$$s.log || { cat build/cmake-$$s.log; exit 1; }; \
	  $(BIN)/cmake --build build/native-$$s -j $(JOBS) || exit 1; \
	  $(BIN)/ctest --test-dir build/native-$$s --output-on-failure --timeout 1200 -j $(JOBS) || exit 1; \
	done

test-python: setup
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

bench: setup
	@$(BIN)/python -m tests.bench.run $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/python -m xlm.protocol.document --check
	$(BIN)/python -m xlm_native._generate --check
	$(BIN)/python -m xlm_native._generate_game --check
	$(BIN)/python native/tools/client_codes.py --check
	$(BIN)/python native/tools/c_api_docs.py --check

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

gpu-kit: setup
	@$(BIN)/python tests/gpu/pack.py build/gpu-kit

clean:
	rm -rf build .venv
