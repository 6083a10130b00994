# demo, test, wasm, oci, lint, bench, bench-scale. Needs Rust (rustup), Python 3 and make; scripts/tools.py finds or fetches the rest.

TOOLS  = python3 scripts/tools.py
MODULE = target/warmroute.wasm
# A larger module costs every VM compile time and memory: raise the bound knowingly.
MODULE_MAX_BYTES = 3200000
# Cargo for the module, which then says nothing of this machine's folders.
WASM_CARGO = python3 scripts/remap_paths.py > target/remap.toml && cargo --config target/remap.toml

# The wasm host that drives the module callback by callback: a package of its own, as its engine takes minutes to compile.
WASM_HOST = --manifest-path tests/support/wasm_host/Cargo.toml --target-dir target/wasm-host

.PHONY: demo test test-deploy wasm wasm-faults oci lint bench bench-scale setup

# Two ways of routing on a local Envoy, side by side. `make demo KEEP=1` leaves it running.
demo: wasm
	cargo build --features native --bins
	envoy=$$($(TOOLS) envoy) && WARMROUTE_ENVOY=$$envoy target/debug/loadgen demo $(if $(KEEP),--keep)

# The core alone, everything native (end to end on the current Envoy), the core on wasm32, the oldest Envoy.
test: wasm wasm-faults
	cargo test
	cargo test --bench fingerprint --bench template --bench tokenize --bench index --bench eviction
	envoy=$$($(TOOLS) envoy) && WARMROUTE_ENVOY=$$envoy cargo test --features native
	envoy=$$($(TOOLS) envoy) && WARMROUTE_ENVOY=$$envoy $(MAKE) test-deploy
	cargo test $(WASM_HOST)
	cargo test --features kubernetes --lib --test kubernetes pod
	cargo test --target wasm32-unknown-unknown --test wasm_core --test templates --test template_bounds --test tokenizers --test text_bounds --test demo_models
	envoy=$$($(TOOLS) envoy 1.36.4) && WARMROUTE_ENVOY=$$envoy cargo test --features native --test envoy_config --test e2e

# The compose files, the dashboard, the alerts and the module's image; with the programs that `cargo test --features native` built.
test-deploy:
	python3 -m unittest discover --start-directory tests/deploy

# The module, checked: it may import nothing but env.proxy_* functions.
wasm: setup
	@mkdir -p target
	$(WASM_CARGO) rustc --lib --crate-type cdylib --features filter --target wasm32-unknown-unknown --profile wasm
	cp target/wasm32-unknown-unknown/wasm/warmroute.wasm $(MODULE)
	python3 scripts/check_module.py $(MODULE) $(MODULE_MAX_BYTES)

# A module that misbehaves on request, for the end-to-end tests.
wasm-faults: setup
	@mkdir -p target
	$(WASM_CARGO) rustc --example fault_module --target wasm32-unknown-unknown --profile wasm
	cp target/wasm32-unknown-unknown/wasm/examples/fault_module.wasm target/fault_module.wasm

# The module as an OCI image for Istio and Envoy Gateway, with checksums and a parts list, in target/oci.
oci: wasm
	python3 scripts/oci.py write $(MODULE) target/oci
	python3 scripts/oci.py check target/oci

lint: setup
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo clippy --features native --all-targets -- -D warnings
	cargo clippy --features kubernetes --lib --test kubernetes -- -D warnings
	cargo clippy $(WASM_HOST) --all-targets -- -D warnings
	cargo clippy --features filter --target wasm32-unknown-unknown -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --features native
	python3 tests/golden/generate.py --check

bench: wasm
	cargo bench --bench fingerprint --bench template --bench tokenize --bench index --bench index_growth --bench eviction
	cargo test $(WASM_HOST) --bench steps
	python3 benches/vm/run.py
	python3 benches/vm/text.py

# A pool of 64 replicas on a local Envoy, 1 M and 4 M pairs; about ten minutes. SCALE passes options, see `loadgen scale --help`.
bench-scale: wasm
	cargo build --release --features native --bins
	envoy=$$($(TOOLS) envoy) && WARMROUTE_ENVOY=$$envoy WARMROUTE_MODULE=$(MODULE) target/release/loadgen scale $(SCALE)

setup:
	@command -v cargo >/dev/null || { echo "cargo is missing: install Rust with rustup, see https://rustup.rs"; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "install Python 3.10 or later"; exit 1; }
	@$(TOOLS) wasm-target
