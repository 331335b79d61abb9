//! Checks of a device against the CPU: every op, whole models of every family, and a training, in one command. They are
//! for a machine with a GPU and no compiler; the tests run the same checks on the CPU.

mod attention;
mod families;
mod mixtures;
mod on;
mod ops;
mod optimizers;
mod products;
mod weights;

pub use attention::{FormTimes, Layer, attention_times};
pub use peft_tune_kernels::compare::Check;

use candle_core::Device;

/// Runs every check on `device`; `report` sees each as it ends.
pub fn all(device: &Device, report: &mut dyn FnMut(&Check)) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut push = |check: Check| {
        report(&check);
        checks.push(check);
    };
    ops::run(device, &mut push);
    weights::run(device, &mut push);
    optimizers::run(device, &mut push);
    families::run(device, 20, &mut push);
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_kernels::gpu::{emulated, has_compiler};

    fn assert_all(run: fn(&Device, &mut dyn FnMut(Check))) {
        let failed = |check: Check| assert!(check.passed(), "{check}");
        run(&Device::Cpu, &mut { failed });
        if has_compiler() {
            emulated(|| run(&Device::Cpu, &mut { failed }));
        }
    }

    #[test]
    fn every_op_passes_on_the_cpu_and_its_kernels_on_the_emulator() {
        assert_all(ops::run);
        assert_all(weights::run);
        assert_all(optimizers::run);
    }

    #[test]
    #[ignore = "emulates whole trainings, which takes many minutes: cargo test every_family_passes -- --ignored"]
    fn every_family_passes_on_the_cpu_and_its_kernels_on_the_emulator() {
        assert_all(|device, push| families::run(device, 3, push));
    }
}
