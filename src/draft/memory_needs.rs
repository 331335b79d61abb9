//! What a setting needs of the device's memory, by the prediction that `plan` and every search use, and about how fast
//! it trains.

use super::machine::Machine;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{Memory, Vectors};
use peft_tune_core::predict::{self, DataSheet, Host, PredictError, Predictor, Setting, Workload, device_of_driver};
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, DataSettings, Precision, Recipe};
use peft_tune_engine::profile::ceilings;

/// A setting, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub precision: Precision,
    pub rank: usize,
    /// Rows that go through the model at once.
    pub rows: usize,
    pub checkpointing: Checkpointing,
}

/// The memory of one model's settings on one machine.
#[derive(Debug)]
pub(crate) struct Needs {
    predictor: Predictor,
    /// Data sheet of the GPU, where it is known.
    sheet: Option<&'static DataSheet>,
    sequence_length: usize,
}

/// FLOP/s of one thread in a whole training step, by the vector instructions that it has.
///
/// Design note: an estimate that costs no measurement, for the size of trials alone; a search measures the machine. Rates
/// of a model of 135 million parameters in BF16 on 2 threads, rounded; those of other processors in proportion to their
/// products.
fn flops_per_s_of_thread(vectors: Vectors) -> f64 {
    match vectors {
        Vectors::Amx => 3e11,
        Vectors::Avx512Bf16 => 1.8e11,
        Vectors::Avx512 => 8e10,
        Vectors::Avx2 => 5e10,
        Vectors::Other | Vectors::None => 1.5e10,
    }
}

impl Needs {
    /// Needs of rows of up to `sequence_length` tokens.
    pub(crate) fn new(architecture: &Architecture, machine: &Machine, sequence_length: usize) -> Self {
        let host = match machine.is_gpu {
            true => Host::gpu(machine.device_bytes),
            false => ceilings::host(),
        };
        Self {
            predictor: peft_tune_engine::predictor(architecture.clone(), predict::Machine::Unmeasured(host)),
            sheet: device_of_driver(&machine.device).filter(|_| machine.is_gpu),
            sequence_length,
        }
    }

    /// The predictor, for whoever looks at whole studies.
    pub(crate) fn into_predictor(self) -> Predictor {
        self.predictor
    }

    /// Bytes at the highest moment of a step that trains adapters on all linear layers, every row full.
    ///
    /// # Errors
    /// Values that the model cannot have.
    pub(super) fn bytes(&self, values: Values) -> Result<u64, PredictError> {
        let recipe = recipe(values, self.sequence_length);
        let workload = Workload::full(values.rows, self.sequence_length);
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        self.predictor
            .predict(&setting)
            .map(|prediction| prediction.peak_bytes())
    }

    /// Tokens a second that a training on rows of `row_tokens` tokens gets through, by a rough estimate: of a GPU by its
    /// data sheet, of a processor by the FLOPs of a token. `None` for a GPU that is not known.
    pub(super) fn tokens_per_s(&self, values: Values, row_tokens: usize) -> Option<f64> {
        let recipe = recipe(values, row_tokens);
        let workload = Workload::full(values.rows, row_tokens);
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        let host = self.predictor.machine().host();
        let rate = match (self.sheet, host.memory()) {
            (Some(sheet), _) => {
                let architecture = self.predictor.architecture().clone();
                let predictor = peft_tune_engine::predictor(architecture, predict::Machine::DataSheet(sheet));
                predictor.predict(&setting).ok()?.tokens_per_s()
            }
            (None, Memory::Device) => return None,
            (None, Memory::Host) => {
                let flops = self.predictor.flops(&setting).ok()?.hardware;
                let per_s = flops_per_s_of_thread(host.vectors) * host.threads as f64;
                workload.mean.tokens() * per_s / flops.max(1.0)
            }
        };
        (rate > 0.0).then_some(rate)
    }
}

/// A setting that trains adapters on all linear layers.
fn recipe(values: Values, sequence_length: usize) -> Recipe {
    let mut recipe = Recipe::new("", DataSettings::default());
    recipe.precision = values.precision;
    recipe.gradient_checkpointing = values.checkpointing;
    recipe.batch.micro_batch = values.rows;
    recipe.batch.sequence_length = sequence_length;
    recipe.adapter = Some(AdapterSettings {
        rank: values.rank,
        ..AdapterSettings::default()
    });
    recipe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_models_train_more_slowly_and_an_unknown_gpu_tells_nothing() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ref_qwen2/model/config.json");
        let small = Architecture::from_config(&path).unwrap();
        let mut large = small.clone();
        large.intermediate_size *= 64;
        let machine = |device: &str, is_gpu| Machine {
            device: device.to_owned(),
            is_gpu,
            usable_bytes: 1 << 34,
            device_bytes: 1 << 34,
        };
        let values = Values {
            precision: Precision::Bf16,
            rank: 8,
            rows: 4,
            checkpointing: Checkpointing::None,
        };
        for (device, is_gpu) in [("cpu", false), ("NVIDIA L4", true)] {
            let rate =
                |model: &Architecture| Needs::new(model, &machine(device, is_gpu), 128).tokens_per_s(values, 100);
            let (fast, slow) = (rate(&small).unwrap(), rate(&large).unwrap());
            assert!(fast > slow && slow > 0.0, "{device}: {fast} {slow}");
        }
        assert_eq!(
            Needs::new(&small, &machine("a GPU", true), 128).tokens_per_s(values, 100),
            None
        );
    }
}
