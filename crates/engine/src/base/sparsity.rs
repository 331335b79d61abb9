//! Values that are left out of a base model's linear weights, and the rule that decides which.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::weight::Weight;
use super::weight_kinds::compute_dtype;
use crate::{SparsityError, TrainError, WeightsError};
use peft_tune_core::plan::PlanError;
use peft_tune_core::recipe::{Precision, WeightSparsity};
use peft_tune_core::whole_file::write_whole;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

/// Name of the file beside an adapter that says what was left out of its base model: the norms that decided, and in its metadata
/// the setting and the precision.
pub(crate) const FILE: &str = "weight_sparsity.safetensors";
const KIND: &str = "weight_sparsity";
const PRECISION: &str = "precision";

/// Rule for the values of linear weights that stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparsity {
    kind: WeightSparsity,
    /// Precision that weights are rounded to before the rule decides.
    precision: Precision,
    /// Norms of the input's columns by the name of the weight; only where activations decide.
    norms: Arc<BTreeMap<String, Vec<f32>>>,
}

impl Sparsity {
    /// Keeps values by their size alone, of weights as `precision` rounds them.
    pub fn magnitude(precision: Precision) -> Self {
        Self {
            kind: WeightSparsity::Magnitude,
            precision,
            norms: Arc::default(),
        }
    }

    /// Keeps values by their size times the norms of the columns of each weight's input (in,), by the name of the
    /// weight.
    pub fn wanda(precision: Precision, norms: BTreeMap<String, Vec<f32>>) -> Self {
        Self {
            kind: WeightSparsity::Wanda,
            precision,
            norms: Arc::new(norms),
        }
    }

    /// Kind of the rule that decides.
    pub fn kind(&self) -> WeightSparsity {
        self.kind
    }

    /// Norms of the columns of each weight's input, where they decide.
    pub fn norms(&self) -> &BTreeMap<String, Vec<f32>> {
        &self.norms
    }

    /// Refuses weights that are quantized.
    ///
    /// # Errors
    /// They are.
    pub(super) fn check(&self, precision: Precision) -> Result<(), TrainError> {
        let sparsity = self.kind;
        match precision.is_quantized() && !sparsity.is_none() {
            true => Err(PlanError::SparseCodes { sparsity, precision }.into()),
            false => Ok(()),
        }
    }

    /// The weight `name` with what stays of it.
    ///
    /// # Errors
    /// A weight whose rows are not whole groups of four, or without norms where they decide.
    pub(super) fn apply(&self, name: &str, weight: &Weight) -> Result<Weight, TrainError> {
        let norms = match self.kind {
            WeightSparsity::None => return Ok(weight.clone()),
            WeightSparsity::Magnitude => None,
            WeightSparsity::Wanda => {
                let found = self.norms.get(name);
                Some(
                    found
                        .ok_or_else(|| SparsityError::NoNorms {
                            tensor: name.to_owned(),
                        })?
                        .as_slice(),
                )
            }
        };
        weight.sparsified(name, compute_dtype(self.precision), norms)
    }

    /// Writes beside an adapter what it was trained on: nothing where its base model is dense.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), TrainError> {
        if self.kind.is_none() {
            return Ok(());
        }
        let tensor = |norms: &Vec<f32>| Tensor::from_slice(norms, norms.len(), &Device::Cpu);
        let tensors = self.norms.iter().map(|(name, norms)| Ok((name, tensor(norms)?)));
        let tensors: Vec<_> = tensors.collect::<candle_core::Result<_>>()?;
        let facts = [(KIND, self.kind.name()), (PRECISION, self.precision.name())];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let path = folder.join(FILE);
        let written = safetensors::serialize(tensors, Some(facts))
            .and_then(|bytes| write_whole(&path, &bytes, true).map_err(SafeTensorError::IoError));
        Ok(written.map_err(|source| WeightsError::Write { path, source })?)
    }

    /// Sparsity of the base model that the adapter in `folder` was trained on; `None` where that was dense.
    ///
    /// # Errors
    /// A file that is damaged.
    pub fn of_adapter(folder: &Path) -> Result<Option<Self>, TrainError> {
        let path = folder.join(FILE);
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = std::fs::read(&path).map_err(|source| TrainError::File {
            path: path.clone(),
            source,
        })?;
        let read = Self::parse(&bytes);
        read.map(Some)
            .map_err(|reason| SparsityError::BadFile { path, reason }.into())
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let fact = |key: &str| {
            let found = header.metadata().as_ref().and_then(|facts| facts.get(key)).cloned();
            found.ok_or_else(|| format!("it does not say its `{key}`"))
        };
        let (kind, precision) = (fact(KIND)?, fact(PRECISION)?);
        let kind = WeightSparsity::from_name(&kind).ok_or_else(|| format!("`{KIND}` is {kind}"))?;
        let precision = Precision::from_name(&precision).ok_or_else(|| format!("`{PRECISION}` is {precision}"))?;
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let norms = file.tensors().into_iter().map(|(name, view)| match view.dtype() {
            Dtype::F32 => {
                let (values, _) = view.data().as_chunks::<4>();
                Ok((name, values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
            }
            other => Err(format!("`{name}` is {other:?}, not F32")),
        });
        let norms: BTreeMap<String, Vec<f32>> = norms.collect::<Result<_, _>>()?;
        Ok(Self {
            kind,
            precision,
            norms: Arc::new(norms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_beside_an_adapter_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        Sparsity::default().save(folder.path()).unwrap();
        assert_eq!(Sparsity::of_adapter(folder.path()).unwrap(), None);
        let norms = BTreeMap::from([
            ("a.weight".to_owned(), vec![0.5, 2.0]),
            ("b.weight".to_owned(), vec![1.0; 3]),
        ]);
        for sparsity in [
            Sparsity::magnitude(Precision::Fp16),
            Sparsity::wanda(Precision::Bf16, norms),
        ] {
            sparsity.save(folder.path()).unwrap();
            assert_eq!(Sparsity::of_adapter(folder.path()).unwrap(), Some(sparsity));
        }
    }

    #[test]
    fn a_file_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let error = || Sparsity::of_adapter(folder.path()).unwrap_err().to_string();
        std::fs::write(&path, b"torn").unwrap();
        assert!(error().contains(FILE), "{}", error());
        let nothing: [(String, Tensor); 0] = [];
        safetensors::serialize_to_file(nothing.clone(), None, &path).unwrap();
        assert!(error().contains("does not say its `weight_sparsity`"), "{}", error());
        let facts = [(KIND, "half"), (PRECISION, "bf16")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        safetensors::serialize_to_file(nothing, Some(facts.into()), &path).unwrap();
        assert!(error().contains("`weight_sparsity` is half"), "{}", error());
    }
}
