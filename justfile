# What CI runs, and what to run before a commit.
check: fmt clippy test doc

fmt:
    cargo fmt --check

clippy:
    cargo clippy --all-targets --locked -- -D warnings

test:
    cargo test --locked

doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked

bench:
    cargo bench
