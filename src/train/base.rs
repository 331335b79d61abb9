//! The base model: an architecture and its frozen weights, loaded once and shared by all trials on it.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::adapter::{BaseShape, LinearShape, ParameterShape};
use super::weights::Checkpoint;
use super::{TrainError, WeightsError};
use crate::architecture::{Architecture, LM_HEAD};
use crate::recipe::Precision;

/// Name of the file that describes a model.
pub(super) const CONFIG: &str = "config.json";

/// A weight as the precision stores it.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// F32, F16 or BF16.
    Dense(Tensor),
}

impl Weight {
    /// Bytes of the weight with its block constants.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
        }
    }

    /// Rows `start..start + rows`, without a copy.
    pub(crate) fn rows(&self, start: usize, rows: usize) -> candle_core::Result<Self> {
        match self {
            Self::Dense(tensor) => Ok(Self::Dense(tensor.narrow(0, start, rows)?)),
        }
    }

    /// The weight as one dense tensor; a copy only where it is quantised.
    pub(crate) fn dense(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(tensor) => Ok(tensor.clone()),
        }
    }
}

/// A base model in memory. Nothing in it changes after loading.
#[derive(Debug)]
pub struct BaseModel {
    architecture: Architecture,
    precision: Precision,
    device: Device,
    weights: BTreeMap<String, Weight>,
}

impl BaseModel {
    /// Loads the model in `directory` (`config.json` and safetensors) into the storage of `precision` on `device`.
    ///
    /// # Errors
    ///
    /// A configuration or checkpoint that is missing, damaged, unknown, or does not agree with the other.
    pub fn load(directory: &Path, precision: Precision, device: &Device) -> Result<Self, TrainError> {
        let architecture = Architecture::from_config(&directory.join(CONFIG))?;
        let checkpoint = Checkpoint::open(directory)?;
        let expected = architecture.tensors();
        checkpoint.check(&expected, |name| is_ignored(name, &architecture))?;
        let dtype = compute_dtype(precision);
        let mut weights = BTreeMap::new();
        for tensor in expected {
            let weight = Weight::Dense(checkpoint.tensor(&tensor.name, &tensor.shape, dtype, device)?);
            weights.insert(tensor.name, weight);
        }
        Ok(Self {
            architecture,
            precision,
            device: device.clone(),
            weights,
        })
    }

    /// A model of `tensors` that are already in memory: one for each of [`Architecture::tensors`], in any float dtype.
    ///
    /// # Errors
    ///
    /// A tensor that is missing or mis-shaped.
    pub fn from_tensors(
        architecture: Architecture,
        mut tensors: BTreeMap<String, Tensor>,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let dtype = compute_dtype(precision);
        let mut weights = BTreeMap::new();
        for expected in architecture.tensors() {
            let Some(tensor) = tensors.remove(&expected.name) else {
                return Err(missing(expected.name).into());
            };
            if tensor.dims() != expected.shape {
                let got = tensor.dims().to_vec();
                return Err(WeightsError::Shape {
                    path: "memory".into(),
                    tensor: expected.name,
                    expected: expected.shape,
                    got,
                }
                .into());
            }
            let tensor = tensor.to_device(device)?.to_dtype(dtype)?.contiguous()?;
            weights.insert(expected.name, Weight::Dense(tensor));
        }
        Ok(Self {
            architecture,
            precision,
            device: device.clone(),
            weights,
        })
    }

    /// The model's dimensions.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// How the weights are stored.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Where the weights lie.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Dtype of the activations.
    pub fn compute_dtype(&self) -> DType {
        compute_dtype(self.precision)
    }

    /// Bytes of all weights in memory, block constants included.
    pub fn bytes(&self) -> usize {
        self.weights.values().map(Weight::bytes).sum()
    }

    /// The tensor `name` of the checkpoint, dense.
    ///
    /// # Errors
    ///
    /// The architecture has no such tensor.
    pub fn tensor(&self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.weight(name)?.dense()?)
    }

    /// Names and shapes of what an adapter can attach to.
    pub fn shape(&self) -> BaseShape {
        let architecture = &self.architecture;
        let modules = architecture.linear_modules();
        let mut linears = Vec::new();
        for layer in 0..architecture.layers.len() {
            linears.extend(modules.iter().map(|module| LinearShape {
                name: format!("{}.{}", Architecture::layer_name(layer), module.name),
                inputs: module.in_features,
                outputs: module.out_features,
                bias: module.bias,
            }));
        }
        let of_linear = |name: &str| {
            let module = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".bias"));
            module.is_some_and(|module| modules.iter().any(|linear| module.ends_with(linear.name)))
        };
        let others = architecture.tensors().into_iter().filter(|tensor| !of_linear(&tensor.name));
        BaseShape {
            layers: architecture.layers.len(),
            linears,
            others: others
                .map(|tensor| ParameterShape {
                    name: tensor.name,
                    shape: tensor.shape,
                })
                .collect(),
        }
    }

    /// The weight `name` as it is stored.
    pub(crate) fn weight(&self, name: &str) -> Result<&Weight, WeightsError> {
        self.weights.get(name).ok_or_else(|| missing(name.to_owned()))
    }
}

fn missing(tensor: String) -> WeightsError {
    WeightsError::MissingTensor {
        path: "memory".into(),
        tensor,
        missing: 1,
    }
}

/// Dtype in which a precision computes.
pub(crate) fn compute_dtype(precision: Precision) -> DType {
    match precision {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        Precision::Bf16 | Precision::Int8 | Precision::Nf4 | Precision::Nf4Double => DType::BF16,
    }
}

/// Tensors that published checkpoints carry beside the parameters: buffers of old library versions, and a copy of the
/// embedding where the LM head is tied to it.
fn is_ignored(name: &str, architecture: &Architecture) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name.ends_with(".masked_bias")
        || (architecture.tied_embeddings && name == LM_HEAD)
}
