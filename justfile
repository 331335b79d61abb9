# One door to everything that is run by hand. `just` (https://just.systems: `cargo install just`, `pip install rust-just`) lists
# the recipes; without it, copy the command that stands below a name.

binary := "target/release/peft-tune"

[private]
default:
    @just --list --unsorted

# Formatting, lints, documentation, tests, dependencies: what a change must pass
[group('check')]
check: fmt clippy doc test deny

# Is the code formatted?
[group('check')]
fmt:
    cargo fmt --all --check

# Lints of all crates and targets
[group('check')]
clippy:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Documentation builds without a warning
[group('check')]
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Tests of all crates, and those of the Python adapters; `just test front` for those whose name has `front`
[group('check')]
test *args:
    cargo test --locked {{args}}

# The same with all cases of the tests that take long, not a part of them: before a change of what they check
[group('check')]
test-all *args:
    PEFT_TUNE_ALL_CASES=1 cargo test --locked {{args}}

# Licences, advisories and sources of the dependencies (`cargo install --locked cargo-deny`)
[group('check')]
deny:
    cargo deny --locked check

# Tests of the adapters for other trainers alone
[group('check')]
adapters:
    python3 -m unittest discover -s integrations/tests

# Mutated inputs of every reader: `just fuzz --cases 1000000 --seed 2`
[group('check')]
fuzz *args:
    cargo run --release --locked --example fuzz -- {{args}}

# Kills searches and workers so many times, and runs ten thousand trials twice: `just kills 200 --seed 2`
[group('check')]
kills *args="200":
    cargo run --release --locked --example kills -- {{args}}

# Report and dashboard in headless Chromium, on a study made for it
[group('check')]
pages:
    cargo test --locked pages_work -- --ignored

# Opens a report of yours in headless Chromium: `just page REPORT.html --pictures DIR`
[group('check')]
page *args:
    node scripts/checks/pages.mjs {{args}}

# The documentation as a site, in target/book (`cargo install --locked mdbook@0.5.4`); `just book serve` shows it while you write
[group('check')]
book action="build":
    mdbook {{action}} docs

# The documentation and the planner in it, in target/book (`rustup target add wasm32-unknown-unknown`)
[group('check')]
site:
    mdbook build docs
    scripts/package/planner.py target/book/planner.html

# Compares the planner with a program and uses it in headless Chromium: `just planner --program target/debug/peft-tune --pictures DIR`
[group('check')]
planner *args:
    node scripts/checks/planner.mjs target/book/planner.html {{args}}

# Shipped search spaces against the printed JSON schemas (`pip install jsonschema ruamel.yaml`)
[group('check')]
schemas program="target/debug/peft-tune":
    scripts/checks/schemas.py {{program}} search_spaces/*.yaml

# What `init --from` and `plan --check` say of a folder of configs of other tools: `just configs FOLDER --json all.json`
[group('check')]
configs folder *args:
    cargo build --release --locked
    scripts/checks/public_configs.py {{folder}} target/release/peft-tune {{args}}

# Subjects of the commits since a revision: `area: reason`, at most 72 characters
[group('check')]
commits since="origin/main":
    scripts/checks/commits.sh {{since}}

# Lines by crate, files over 400 lines, functions over 60: of this tree, or of another
[group('check')]
lines tree=".":
    scripts/checks/lines.py {{tree}}

# All that CI runs on Linux: the checks above, and those of the dear parts that have not passed on the files as they are
[group('check')]
ci:
    .ci/run

# Which dear parts are to be run; `just part run` runs them (exports in PEFT and TRL, kernels in NVRTC, the build for NVIDIA GPUs, ..)
[group('check')]
part *args:
    .ci/part {{args}}

# Micro-benchmarks; one of race, regret, length, fidelity, proposal, step, ops, spans, store, optimizer, quant, with its flags behind `--`
[group('measure')]
bench name *args:
    cargo bench --locked --bench {{name}} {{args}}

# Predicted against counted peak memory on random recipes: `just predict memory 64`
[group('measure')]
predict *args:
    cargo run --release --locked --example predict -- {{args}}

# A training step beside PEFT's: tokens/s and memory (a Python with torch, transformers, peft)
[group('measure')]
beside-peft *args:
    scripts/measure/compare_with_peft.py --binary {{binary}} {{args}}

# A study by the engine and by TRL, 32 settings or `--study FILE`: rank correlation (`--python PYTHON` has TRL)
[group('measure')]
compare-backends *args:
    scripts/measure/compare_backends.py --binary {{binary}} {{args}}

# A Python wheel of this machine
[group('package')]
wheel folder='dist':
    scripts/package/wheels.sh {{folder}}

# Installs a wheel in a fresh environment, runs the quickstart from it and the tests of the module
[group('package')]
wheel-test wheel *packages:
    scripts/package/wheel-test.sh {{wheel}} {{packages}}

# The notebook of the docs, from the wheel to an adapter, in a Python that has ipython
[group('package')]
notebook-test wheel python:
    scripts/package/notebook-test.sh {{wheel}} {{python}}

# Whether a wheel runs on the systems of its name: auditwheel's and pip's word
[group('package')]
audit wheel:
    scripts/package/audit.sh {{wheel}}

# Starts the program of a wheel for 64-bit ARM under qemu: a search of one trial and a training (`qemu-user-static`)
[group('package')]
emulated-test wheel:
    scripts/package/emulated-test.sh {{wheel}}

# What a program is made of: sections, and code by crate; `just sizes target/release/peft-tune`
[group('package')]
sizes *args:
    scripts/package/sizes.py {{args}}

# Every crate as a registry gets it, and the program compiled from them; `just crates --install FOLDER` installs it
[group('package')]
crates *args='target/crates':
    scripts/package/crates.sh {{args}}

# One archive with program, manual pages and completions, and its checksum: `just archive PROGRAM FOLDER`
[group('package')]
archive *args:
    scripts/package/archive.sh {{args}}

# Uses an archive as its reader would
[group('package')]
archive-test archive:
    scripts/package/archive-test.sh {{archive}}

# A container image of an archive, or of a wheel with `--cuda`, tried in a container: `just image ARCHIVE NAME`
[group('package')]
image *args:
    scripts/package/image.sh {{args}}

# The wheel with NVIDIA support, around the module of the plain one: `just cuda-wheel PLAIN_WHEEL FOLDER`
[group('package')]
cuda-wheel *args:
    scripts/package/cuda-wheel.sh {{args}}

# The same of a program that is built already, and not tried: `just cuda-wheel-of PLAIN_WHEEL PROGRAM FOLDER`
[group('package')]
cuda-wheel-of *args:
    scripts/package/cuda_wheel.py {{args}}

# The bill of materials of a wheel's program: `just sbom WHEEL FILE`
[group('package')]
sbom *args:
    scripts/package/sbom.sh {{args}}

# Whether a tag, the version and the changelog agree: `just release-version v0.1.0`
[group('package')]
release-version tag:
    scripts/package/version.sh {{tag}}

# How far each family is from PyTorch and PEFT: the table of docs/benchmarks/parity.csv
[group('measure')]
parity:
    @cargo test --locked --test it -- --ignored --nocapture --test-threads 1 table_of_all_families 2>/dev/null | grep , | sed 's/.* //'

# Published measurements beside the predictions for their stacks: `just published ROWS.json MODELS.json`
[group('measure')]
published rows models *args:
    cargo run --release --locked --example published -- {{rows}} {{models}} > target/published.jsonl
    scripts/measure/stacks.py {{rows}} target/published.jsonl {{args}}

# Memory and speed of TRL and PEFT on this CPU beside their predictions; needs torch, transformers, peft and trl: half an hour
[group('measure')]
beside-trl *args:
    scripts/measure/beside_trl.py --binary {{binary}} {{args}}

# Trainings in TRL with a fault each and clean ones: what `watch` names (`--python PYTHON` has TRL): twenty minutes
[group('measure')]
watch-faults *args:
    scripts/measure/watch_faults.py --binary {{binary}} {{args}}

# Pairs of trainings in TRL with `watch` and without: what it costs a step (`--python PYTHON` has TRL): a quarter of an hour
[group('measure')]
watch-overhead *args:
    scripts/measure/watch_overhead.py --binary {{binary}} {{args}}

# Quickstarts with several seeds, quiet or beside busy loops: is what they recommend sound? Two minutes each
[group('measure')]
quickstarts folder *args:
    scripts/measure/quickstarts.py {{binary}} {{folder}} {{args}}

# Exhaustive tables of real trainings, by which `just bench regret` judges searches: half an hour, with other work stopped
[group('measure')]
tables *args:
    scripts/measure/tables.py {{binary}} benches/race/tables {{args}}

# Trainings of a pretrained model on real chats at several lengths: a day in all, in as many parts as one likes
[group('measure')]
real-table model train held_out *args:
    scripts/measure/real_table.py {{binary}} {{model}} {{train}} {{held_out}} benches/race/lengths/smollm2-gsm8k.csv {{args}}

# Trainings of a small model at several lengths, by which `just bench length` judges what is said of long ones: half an hour
[group('measure')]
length-table name table *args:
    scripts/measure/length_table.py {{binary}} {{name}} {{table}} {{args}}

# The race of samplers through the program, beside Optuna and BoTorch where they are installed
[group('measure')]
race *args:
    python3 benches/race/race.py --binary {{binary}} {{args}}

# Exported files read by the tools they are for, unknown keys refused (`pip install peft trl`)
[group('peers')]
exports *args="tests/golden/exports/*":
    scripts/peers/exports.py {{args}}

# Exported studies opened in Optuna, MLflow, TensorBoard and pandas: `just studies --db peft-tune.db`
[group('peers')]
studies *args:
    scripts/peers/studies_with_tools.py --binary {{binary}} {{args}}

# Searches with trackers, read by their own packages (`pip install tensorboard mlflow optuna wandb trackio`)
[group('peers')]
trackers *args:
    scripts/peers/trackers_with_tools.py --binary {{binary}} {{args}}

# A client of the Model Context Protocol searches the quickstart by `peft-tune mcp` (`pip install mcp`)
[group('peers')]
mcp *args:
    scripts/peers/mcp_client.py --binary {{binary}} {{args}}

# A merged model in GGUF form, opened by gguf-py and transformers: `just in-gguf PACKED PLAIN`
[group('peers')]
in-gguf *args:
    scripts/peers/gguf_files.py {{args}}

# Adapters of nine kinds trained here and opened in PEFT
[group('peers')]
in-peft *args:
    scripts/peers/adapters_with_peft.py {{args}}

# What is trained of chats, beside transformers and the templates of TRL: `just chat-masks BINARY [TEMPLATES]`
[group('peers')]
chat-masks *args:
    scripts/peers/chat_masks.py {{args}}

# What is trained of data files, beside transformers and TRL: `just data-files BINARY [--template NAME] FILES OR FOLDERS`
[group('peers')]
data-files *args:
    scripts/peers/data_files.py {{args}}

# The rows that a tool trains on from an exported file, beside the engine's: `just exported-rows BINARY --tool trl --python PYTHON`
[group('peers')]
exported-rows *args:
    scripts/peers/exported_rows.py {{args}}

# How soon a search proposes what is good at full length, beside Optuna with TRL; hours: `just beside-optuna MODEL TRAIN HELD_OUT FOLDER`
[group('peers')]
beside-optuna model train held_out folder *args:
    scripts/peers/beside_optuna.py {{binary}} {{model}} {{train}} {{held_out}} benches/race/lengths/smollm2-gsm8k.csv {{folder}} {{args}}

# Ten steps from one adapter, here and in the tools: `just ten-steps BINARY --tools trl=PYTHON,loop=PYTHON`
[group('peers')]
ten-steps *args:
    scripts/peers/ten_steps.py {{args}}

# Merged and quantized models opened with transformers and bitsandbytes
[group('peers')]
in-bitsandbytes *args:
    scripts/peers/quantized_with_bitsandbytes.py {{args}}

# Searches with `backend: trl`, and what its worker does with TRL itself: `just trl BINARY PYTHON`
[group('peers')]
trl *args:
    scripts/peers/trl-test.sh {{args}}

# A search that runs axolotl: `just axolotl BINARY PYTHON`
[group('peers')]
axolotl *args:
    scripts/peers/axolotl-test.sh {{args}}

# A search whose trials torchrun, accelerate and DeepSpeed start: `just launchers BINARY PYTHON`
[group('peers')]
launchers *args:
    scripts/peers/launch-test.sh {{args}}

# A search through Slurm on this machine, with a node that is lost (as root)
[group('clusters')]
slurm *args:
    scripts/clusters/slurm-test.sh {{args}}

# A Slurm cluster of several nodes on this machine: `just slurm-cluster start DIR 2`, `stop DIR`
[group('clusters')]
slurm-cluster *args:
    scripts/clusters/slurm-cluster.sh {{args}}

# A search through ssh on this machine, with a connection that is cut
[group('clusters')]
ssh *args:
    scripts/clusters/ssh-test.sh {{args}}

# Every kernel compiled by NVRTC; fails where registers spill or an overlap is gone (no GPU needed)
[group('gpu')]
kernels *args:
    scripts/kernels/compile_kernels.py {{args}}

# The kernels' PTX run on the CPU, beside Triton's (numpy, and triton where it is installed)
[group('gpu')]
ptx *args:
    scripts/kernels/check_ptx.py {{args}}

# The program with NVIDIA support: lints, links, starts, and runs on a GPU in software (no GPU needed)
[group('gpu')]
gpu-build:
    scripts/gpu/build-test.sh

# The program on a GPU in software, after gpu-build: all parts, or those named
[group('gpu')]
gpu-stand-in *parts:
    scripts/gpu/stand-in-test.sh {{parts}}

# Records of CUPTI against a toolkit's header; `--update` writes the golden file
[group('gpu')]
gpu-cupti *args:
    scripts/gpu/cupti-layouts.sh {{args}}

# One archive with program, launcher and checks for machines without Rust
[group('gpu')]
gpu-pack *args:
    scripts/gpu/pack.sh {{args}}

# Checks and times this machine's NVIDIA GPU, beside PEFT: `just gpu-check first`, `second`, `third`
[group('gpu')]
gpu-check *parts:
    scripts/gpu/check.sh {{parts}}

# What gpu-check left in a folder: `just gpu-results table FOLDER`
[group('gpu')]
gpu-results *args:
    scripts/gpu/results.py {{args}}

# PyTorch's attention beside what gpu-check timed: `just gpu-attention gpu-results/attention.json`
[group('gpu')]
gpu-attention *args:
    scripts/gpu/attention_bench.py {{args}}

# PEFT on the settings that gpu-check times: `just gpu-peft OUTPUT.json`
[group('gpu')]
gpu-peft *args:
    scripts/gpu/peft_bench.py {{args}}

# Each product of a step by itself, beside what the device gives at best: `just gpu-products OUTPUT.json`
[group('gpu')]
gpu-products *args:
    scripts/gpu/products_bench.py {{args}}

# A model directory with random weights of a large model's shape: `just gpu-model FOLDER TOKENIZER_FOLDER`
[group('gpu')]
gpu-model *args:
    scripts/gpu/make_model.py {{args}}

# Exported files and charts as they are now become the expected ones: read the diff
[group('goldens')]
accept:
    UPDATE_GOLDEN=1 cargo test --locked --test it -- export:: report::

# The pages that are made from tables: database, commands, settings, metrics, exit codes
[group('goldens')]
accept-docs:
    UPDATE_DOCS=1 cargo test --locked --test it -- document reference::

# The quickstart's texts, tokenizer and base model
[group('goldens')]
quickstart:
    cargo run --release --locked --example make_quickstart

# Numbers of other programs: one script of tests/golden or tests/fixtures (its head says what it needs)
[group('goldens')]
golden script:
    cd "$(dirname {{script}})" && TORCHDYNAMO_DISABLE=1 python3 "$(basename {{script}})"
