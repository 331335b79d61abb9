//! Weights of a checkpoint that another program quantized: whether they are there, and their values.

use std::collections::BTreeSet;

use candle_core::Tensor;

use super::{Checkpoint, WeightsError, packed};
use peft_tune_core::architecture::TensorShape;

impl Checkpoint {
    /// Checks that the checkpoint holds exactly the tensors `expected`, with these shapes; names for which `ignored`
    /// holds may be there too. Of tensors that another program quantized, reading them checks the shape.
    pub fn check(&self, expected: &[TensorShape], ignored: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let is_there = |name: &str| self.contains(name) || packed::is_in_place(self, name);
        let mut missing = expected.iter().filter(|tensor| !is_there(&tensor.name));
        if let Some(first) = missing.next() {
            return Err(WeightsError::MissingTensor {
                path: self.path().to_owned(),
                tensor: first.name.clone(),
                missing: 1 + missing.count(),
            });
        }
        if let Some(gguf) = self.gguf() {
            let extra = gguf.extra(expected);
            return match extra.first() {
                None => Ok(()),
                Some(first) => Err(WeightsError::ExtraTensor {
                    path: self.path().to_owned(),
                    tensor: first.clone(),
                    extra: extra.len(),
                }),
            };
        }
        let known: BTreeSet<&str> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
        let belongs = |name: &str| quantized_owner(name).is_some_and(|owner| known.contains(owner.as_str()));
        let mut extra = self
            .names()
            .filter(|name| !known.contains(name) && !ignored(name) && !belongs(name) && !packed::is_idle(self, name));
        if let Some(first) = extra.next() {
            return Err(WeightsError::ExtraTensor {
                path: self.file_of(first).to_owned(),
                tensor: first.to_owned(),
                extra: 1 + extra.count(),
            });
        }
        let quantized: BTreeSet<String> = self.names().filter_map(quantized_owner).collect();
        for tensor in expected.iter().filter(|tensor| !quantized.contains(&tensor.name)) {
            self.check_tensor(&tensor.name, &tensor.shape)?;
        }
        Ok(())
    }

    /// The weight `name` of a shape (out, in) where a program other than bitsandbytes quantized it, and any tensor of a GGUF file;
    /// F32 on the CPU.
    ///
    /// # Errors
    /// A part that is missing or damaged; a form that is not read.
    pub(crate) fn packed(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor>, WeightsError> {
        if let Some(gguf) = self.gguf() {
            return Ok(gguf.tensor(name, shape)?);
        }
        packed::read(self, name, shape).map_err(|source| WeightsError::Packed {
            path: self.path().to_owned(),
            tensor: name.to_owned(),
            source: Box::new(source),
        })
    }

    /// Whether any weight is quantized by a program other than bitsandbytes, or may be.
    pub(crate) fn is_packed(&self) -> bool {
        self.gguf().is_some() || self.names().any(|name| packed::owner(name).is_some())
    }
}

/// The tensor that a quantized one's tensor `name` belongs to: `x.weight` for `x.weight.absmax`, `x.SCB`, `x.qzeros`...
fn quantized_owner(name: &str) -> Option<String> {
    const BESIDE: [&str; 6] = [
        ".absmax",
        ".quant_map",
        ".nested_absmax",
        ".nested_quant_map",
        ".quant_state.bitsandbytes__nf4",
        ".quant_state.bitsandbytes__fp4",
    ];
    if let Some(owner) = BESIDE.iter().find_map(|ending| name.strip_suffix(ending)) {
        return Some(owner.to_owned());
    }
    let module = name
        .strip_suffix(".SCB")
        .or_else(|| name.strip_suffix(".weight_format"));
    match module {
        Some(module) => Some(format!("{module}.weight")),
        None => packed::owner(name),
    }
}
