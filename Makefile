# make demo    set up what is missing, build, and take the tour
# make test    set up what is missing, and run every test
# make test-otlp    what a build with the feature otlp sends to a collector
# make test-pocket  what a build with the feature pocket finds
# make test-llama   take a turn on each API with a real llama.cpp server
# make bench   measure against the peers, interleaved, and print one table
# make bench-memory DATA=dir   how much recall finds on LoCoMo-format files, and how fast it is
# make bench-tokens  the README's tasks as scripts and as structured calls: requests and tokens
# make fuzz    fuzz the detector, the compiler front, the wall and the decoders of answers for five minutes
# make docs    write the generated parts of docs/ anew
# make lint    formatting, clippy and the documentation of the crates, without a warning
# make check   what no test compiles: the features otlp and pocket, and the fuzz targets
# make deny    licences, duplicate packages and their sources, as deny.toml says

CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
FUZZ_SECONDS ?= 300

.PHONY: demo test test-otlp test-pocket test-llama bench bench-memory bench-tokens fuzz docs lint check deny setup

setup:
	@scripts/setup

# The tour is an example of the same package, and `make test` selects the same features: every
# dependency is compiled once for all three.
demo: setup
	@echo "building selvedge and the tour: 9 to 14 minutes on two cores the first time"
	@scripts/with-compiler $(CARGO) build -p selvedge --bin selvedge --example tour
	@scripts/demo

test: setup
	@scripts/setup-tests
	@echo "building and running every test: the first time takes longer than \`make demo\`"
ifeq ($(NEXTEST),yes)
	scripts/with-compiler $(CARGO) nextest run --workspace
else
	scripts/with-compiler $(CARGO) test --workspace --all-targets
endif
	scripts/with-compiler $(CARGO) test --workspace --doc

test-otlp: setup
	scripts/with-compiler $(CARGO) test --workspace --features selvedge/otlp --test otlp

test-pocket: setup
	scripts/with-compiler $(CARGO) test --workspace --features selvedge-memory/pocket --test pocket

test-llama: setup
	python=$$(scripts/setup-llama) && SELVEDGE_LLAMA_PYTHON=$$python $(CARGO) test --workspace --test llama

lint: setup
	$(CARGO) fmt --all --check
	scripts/with-compiler $(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" scripts/with-compiler $(CARGO) doc --workspace --no-deps

check: setup
	scripts/with-compiler $(CARGO) check --workspace --all-targets --features selvedge/otlp,selvedge/pocket
	CARGO_TARGET_DIR=target scripts/with-compiler $(CARGO) check --manifest-path fuzz/Cargo.toml

deny:
	@scripts/setup-deny
	.tools/bin/cargo-deny --workspace check bans
	.tools/bin/cargo-deny --workspace --all-features check licenses sources

bench: setup
	@scripts/setup-mcp-peers
	cd bench && npm install --no-audit --no-fund --loglevel=error && npm rebuild --loglevel=error isolated-vm
	scripts/with-compiler $(CARGO) build --release -p selvedge -p selvedge-bench
	target/release/selvedge-bench --write docs/benchmarks.md

# FEATURES=pocket measures with vectors, too.
bench-memory:
	$(CARGO) run --release -q -p selvedge-memory --example bench_memory --features "$(FEATURES)" -- $(DATA)
	$(CARGO) run --release -q -p selvedge-memory --example bench_memory --features "$(FEATURES)" -- --speed

bench-tokens: setup
	scripts/with-compiler $(CARGO) run --release --quiet -p selvedge-bench -- tokens

fuzz: setup
	scripts/fuzz $(FUZZ_SECONDS)

docs: setup
	UPDATE_DOCS=1 scripts/with-compiler $(CARGO) test -p selvedge --test docs --test examples
