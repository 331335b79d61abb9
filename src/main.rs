//! The `peft-tune` binary; everything it does is in the library.

fn main() -> std::process::ExitCode {
    peft_tune::cli::main()
}
