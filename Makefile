# make demo         install dependencies, build, and run the tour
# make test         install dependencies, and run all tests
# make test-store-faults  kill servers and restart the database for 2 minutes, measure throughput
# make test-otlp    test the OTLP exporter (feature otlp)
# make test-pocket  test the search by vectors (feature pocket)
# make test-llama   run a turn on each API with a real llama.cpp server
# make bench        benchmark against other programs, and print a table
# make bench-sessions  record the sessions on which bench-memory measures the levels of turns
# make bench-memory [DATA=dir]  measure levels, recall (also on files in LoCoMo format) and speed,
#                   also on PostgreSQL
# make bench-tokens count requests and tokens of the README's tasks, as scripts and as calls
# make attack       run all collected attacks against the debug binary, and print a table;
#                   with BINARY=file against another
# make fuzz         fuzz detector, compiler, sandbox and decoders for five minutes
# make docs         write the generated parts of docs/ and the README
# make screenshots  write the pictures of docs/page.md
# make lighthouse   measure the page with Lighthouse: scores, first paint and weight
# make lint         check formatting, clippy and rustdoc without warnings
# make check        compile what no test compiles: features otlp and pocket, fuzz targets
# make deny         check licences, duplicate packages, sources, advisories (deny.toml) and build scripts
# make dist         build, attack and pack a release: archive, Debian package and checksums in dist/
#                   and test that the guide works from the archive

CARGO ?= cargo
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
FUZZ_SECONDS ?= 300

.PHONY: demo test test-store-faults test-otlp test-pocket test-llama bench bench-sessions bench-memory bench-tokens attack fuzz docs screenshots lighthouse lint check deny dist setup

setup:
	@scripts/setup

# The tour is an example of the same package, and `make test` selects the same features, so that
# every dependency is compiled once.
demo: setup
	@echo "building selvedge and the tour: 9 to 14 minutes on two cores the first time"
	@scripts/with-compiler $(CARGO) build -p selvedge --bin selvedge --example tour
	@scripts/demo

# The tests that also run on PostgreSQL. They are one selection of packages, so that every dependency
# has the same features as in the other tests.
STORE_TESTS := -p selvedge-database -p selvedge-journal -p selvedge-memory -p selvedge-agent \
	-p selvedge --lib --test crash --test takeover --test postgres --test postgres_tls --test cabinet --test channels --test server_store --test session_store \
	--test leases --test storage --test turn_changes --test write_behind --test store_copy --test batches \
	--test distill_and_forget --test encryption --test folders --test forgetting --test gradient \
	--test import --test lesson_changes --test offline --test pipeline --test quality --test servers \
	--test shared_approvals \
	--test projects --test recall --test turn_levels --test store --test resume --test serve --test suspension

# What runs instead of these tests if PostgreSQL cannot be installed, which is a failure in CI.
SKIP_STORE_TESTS = { echo "note: skipping the tests on PostgreSQL" >&2; [ -z "$$CI" ]; }

test: setup
	@scripts/setup-tests
	@echo "building and running all tests: the first time takes longer than \`make demo\`"
ifeq ($(NEXTEST),yes)
	scripts/with-compiler $(CARGO) nextest run --workspace -E 'package(selvedge-tidy)'
	scripts/with-compiler $(CARGO) nextest run --workspace --no-fail-fast -E 'not package(selvedge-tidy)'
	if scripts/setup-postgres >/dev/null; then scripts/with-postgres scripts/with-compiler $(CARGO) nextest run --no-fail-fast $(STORE_TESTS) -E 'not test(page::)'; \
	else $(SKIP_STORE_TESTS); fi
else
	scripts/with-compiler $(CARGO) test --workspace --all-targets
	if scripts/setup-postgres >/dev/null; then scripts/with-postgres scripts/with-compiler $(CARGO) test $(STORE_TESTS) -- --skip page::; \
	else $(SKIP_STORE_TESTS); fi
endif
	scripts/with-compiler $(CARGO) test --workspace --doc
	if scripts/setup-postgres >/dev/null; then scripts/test-store-faults short; else $(SKIP_STORE_TESTS); fi

test-store-faults: setup
	@scripts/setup-tests
	scripts/with-compiler $(CARGO) build -p selvedge --bin selvedge --example tour
	scripts/test-store-faults long
	scripts/test-store-faults split-brain
	scripts/test-store-faults clock-skew
	scripts/test-store-faults outage
	scripts/test-store-faults throughput
	scripts/measure-store-load

test-otlp: setup
	scripts/with-compiler $(CARGO) test --workspace --features selvedge/otlp --test otlp

test-pocket: setup
	scripts/with-compiler $(CARGO) test --workspace --features selvedge-memory/pocket --test pocket

test-llama: setup
	python=$$(scripts/setup-llama) && SELVEDGE_LLAMA_PYTHON=$$python \
		scripts/with-compiler $(CARGO) test --workspace --test llama

screenshots: setup
	@scripts/setup-browser
	@mkdir -p docs/images
	scripts/with-compiler $(CARGO) test --workspace --test serve page::screenshots -- --ignored --exact

lighthouse: setup
	@scripts/setup-browser
	@scripts/setup-lighthouse
	scripts/with-compiler $(CARGO) test --workspace --test serve page::lighthouse -- --ignored --exact --nocapture

lint: setup
	$(CARGO) fmt --all --check
	scripts/with-compiler $(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" scripts/with-compiler $(CARGO) doc --workspace --no-deps

check: setup
	scripts/with-compiler $(CARGO) check --workspace --all-targets --features selvedge/otlp,selvedge/pocket
	CARGO_TARGET_DIR=target scripts/with-compiler $(CARGO) check --manifest-path fuzz/Cargo.toml

deny:
	@scripts/setup-deny
	.tools/bin/cargo-deny --workspace --all-features check bans licenses sources
	scripts/check-advisories
	scripts/check-build-scripts

bench: setup
	@scripts/setup-mcp-peers
	@scripts/setup-bench
	scripts/with-compiler $(CARGO) build --release -p selvedge -p selvedge-bench
	target/release/selvedge-bench --write docs/benchmarks.md

# Records 200 turns on five packages with real tests and builds, once.
bench-sessions: setup
	scripts/with-compiler $(CARGO) build -p selvedge --bin selvedge
	node bench/record-sessions.mjs

# Recall with vectors is measured with a static table of words, with another program (ENCODER=…, see
# bench/static-encoder.py), or with the built-in encoder (ENCODER= FEATURES=pocket).
VECTORS = $(or $(SELVEDGE_BENCH_VECTORS),target/vectors)
RECORDED = $(wildcard target/bench-sessions/recall)
ENCODER = $(VECTORS)/venv/bin/python bench/static-encoder.py $(DATA) $(RECORDED)
BENCH_MEMORY = scripts/with-compiler $(CARGO) run --release -q -p selvedge-memory \
	--example bench_memory --features "$(FEATURES)" --
bench-memory: setup
	$(if $(ENCODER),@scripts/setup-vectors)
	$(BENCH_MEMORY) --levels target/bench-sessions/turns.jsonl --recall \
		$(if $(ENCODER),--encoder "$(ENCODER)") --speed $(DATA) $(RECORDED)
	scripts/with-postgres sh -c '$(BENCH_MEMORY) --speed --store "$$SELVEDGE_TEST_STORE"'

bench-tokens: setup
	scripts/with-compiler $(CARGO) run --release --quiet -p selvedge-bench -- tokens

attack: setup
ifdef BINARY
	scripts/with-compiler $(CARGO) build --workspace --bin selvedge-attack
	target/debug/selvedge-attack --binary $(BINARY)
else
	scripts/with-compiler $(CARGO) build --workspace --bin selvedge --bin selvedge-attack
	target/debug/selvedge-attack --binary target/debug/selvedge
endif

dist: setup
	scripts/with-compiler $(CARGO) build --release --locked -p selvedge
	$(MAKE) attack BINARY=target/release/selvedge
	@scripts/setup-deb
	scripts/dist target/release/selvedge
	SELVEDGE_DIST=$(CURDIR)/dist scripts/with-compiler $(CARGO) test --workspace --test newcomer

fuzz: setup
	scripts/fuzz $(FUZZ_SECONDS)

docs: setup
	UPDATE_DOCS=1 scripts/with-compiler $(CARGO) test -p selvedge --test docs --test examples --test session_messages
	UPDATE_DOCS=1 scripts/with-compiler $(CARGO) test -p selvedge --test serve example::
