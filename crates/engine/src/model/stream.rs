//! A micro-batch on the device.

use candle_core::{DType, Device, Result, Tensor};

use super::paper_batch::PaperBatch;
use super::traced::Documents;
use super::traced::loss_head::Targets;
use super::{AdapterPass, DropoutKey, RowOwners, RowPart};
use crate::data::MicroBatch;
use crate::tensor;
use crate::tensor::Ledger;
use peft_tune_kernels::gpu;
use peft_tune_kernels::ops::attention;
use peft_tune_kernels::ops::loss_head::{self, PlacedTargets, Sums, target_positions};

/// Inputs that all layers need beside the activations.
#[derive(Debug)]
pub(crate) struct Stream<'a> {
    batch: Batch<'a>,
    /// (T,) U32
    pub ids: tensor::Tensor,
    /// (T,) U32
    pub positions: tensor::Tensor,
    pub pass: AdapterPass,
    /// Factor on the gradient of the loss sum; absent where nothing trains.
    pub gradient_scale: Option<f32>,
    /// Buffers of the stream on a GPU.
    place: Option<StreamBuffer>,
}

/// Source of a stream's documents and targets.
#[derive(Clone, Copy, Debug)]
enum Batch<'a> {
    Real(&'a MicroBatch),
    Paper(&'a PaperBatch),
}

/// Memory of a GPU for all that kernels read of a micro-batch: one tensor, which is written at once. Another micro-batch of as many
/// tokens and targets may take its place.
#[derive(Clone, Debug)]
pub(crate) struct StreamBuffer {
    /// (n,) U32, in this order: the key of the masks (4), the bits of the gradient scale (1), token ids (T), positions (T), bounds of
    /// documents (2 T), positions that have a target (targets), and these targets (targets).
    words: Tensor,
    ids: Tensor,
    positions: Tensor,
    masks: Tensor,
    bounds: Tensor,
    /// Targets in the device's memory; absent where no position has one.
    targets: Option<PlacedTargets>,
}

/// Words before the token ids.
const HEAD: usize = 5;

impl<'a> Stream<'a> {
    pub(crate) fn new(
        batch: &'a MicroBatch,
        dropout: Option<DropoutKey>,
        gradient_scale: Option<f32>,
        device: &Device,
    ) -> Result<Self> {
        if gpu::is_for(device, DType::F32) {
            let place = StreamBuffer::new(batch, device)?;
            return Self::onto(&place, batch, dropout, gradient_scale);
        }
        let tokens = batch.tokens();
        Ok(Self {
            batch: Batch::Real(batch),
            ids: Tensor::from_slice(&batch.input_ids, tokens, device)?.into(),
            positions: Tensor::from_slice(&batch.positions, tokens, device)?.into(),
            pass: AdapterPass {
                dropout,
                ..AdapterPass::default()
            },
            gradient_scale,
            place: None,
        })
    }

    /// The stream on paper, of a training. The bytes of ids and positions are counted with the micro-batch.
    pub(crate) fn on_paper(batch: &'a PaperBatch, dropout: Option<DropoutKey>, ledger: &Ledger) -> Self {
        let of_tokens = || tensor::Tensor::from(ledger.uncounted(batch.tokens(), DType::U32));
        Self {
            batch: Batch::Paper(batch),
            ids: of_tokens(),
            positions: of_tokens(),
            pass: AdapterPass {
                dropout,
                ..AdapterPass::default()
            },
            gradient_scale: Some(1.0),
            place: None,
        }
    }

    /// Writes the micro-batch to a place for as many tokens and targets.
    ///
    /// # Errors
    /// Another number of them, or those of the driver.
    pub(crate) fn onto(
        place: &StreamBuffer,
        batch: &'a MicroBatch,
        dropout: Option<DropoutKey>,
        gradient_scale: Option<f32>,
    ) -> Result<Self> {
        place.write(batch, dropout.as_ref(), gradient_scale)?;
        Ok(Self::at(place, batch, dropout, gradient_scale))
    }

    /// The stream at `place`, whatever has been written there.
    pub(crate) fn at(
        place: &StreamBuffer,
        batch: &'a MicroBatch,
        mut dropout: Option<DropoutKey>,
        gradient_scale: Option<f32>,
    ) -> Self {
        if let Some(key) = &mut dropout {
            key.masks.on_device = Some(place.masks.clone());
        }
        Self {
            batch: Batch::Real(batch),
            ids: place.ids.clone().into(),
            positions: place.positions.clone().into(),
            pass: AdapterPass {
                dropout,
                ..AdapterPass::default()
            },
            gradient_scale,
            place: Some(place.clone()),
        }
    }

    /// Returns the stream with adapters side by side, of which each row has one.
    pub(crate) fn owned_by(mut self, owners: Option<RowOwners>) -> Self {
        self.pass.owners = owners;
        self
    }

    /// Returns the stream with rows of several trainings.
    pub(crate) fn in_parts(mut self, parts: Vec<RowPart>) -> Self {
        self.pass.parts = parts;
        self
    }

    /// The documents that attention stays in.
    pub(super) fn documents(&self) -> Documents<'_> {
        match self.batch {
            Batch::Real(batch) => Documents::Real(attention::Documents {
                offsets: &batch.offsets,
                bounds: self.place.as_ref().map(|place| &place.bounds),
            }),
            Batch::Paper(batch) => Documents::Paper(&batch.shape.documents),
        }
    }

    /// Targets of every position.
    pub(super) fn targets(&self) -> Targets<'_> {
        match self.batch {
            Batch::Real(batch) => Targets::Real(loss_head::Targets {
                values: &batch.targets,
                placed: self.place.as_ref().and_then(|place| place.targets.as_ref()),
            }),
            Batch::Paper(batch) => Targets::Paper(batch.parts.iter().map(|part| part.targets).sum()),
        }
    }

    /// Targets of the rows of training `index`, of several in one stream.
    ///
    /// # Errors
    /// A stream without such a part.
    pub(super) fn targets_of(&self, index: usize) -> Result<Targets<'_>> {
        let targets = match self.batch {
            Batch::Real(batch) => {
                let part = self.pass.parts.get(index);
                let values = part.and_then(|part| batch.targets.get(part.rows.clone()));
                values.map(|values| Targets::Real(values.into()))
            }
            Batch::Paper(batch) => batch.parts.get(index).map(|part| Targets::Paper(part.targets)),
        };
        targets.ok_or_else(|| candle_core::Error::Msg(format!("the stream has no rows of training {index}")))
    }
}

impl StreamBuffer {
    /// Room for streams of as many tokens and targets as `batch` has.
    pub(crate) fn new(batch: &MicroBatch, device: &Device) -> Result<Self> {
        let (tokens, targets) = (batch.tokens(), batch.target_tokens());
        let words = gpu::empty(HEAD + 4 * tokens + 2 * targets, DType::U32, device)?;
        let mut next = 0;
        let mut part = |words: &Tensor, length: usize| {
            next += length;
            words.narrow(0, next - length, length)
        };
        let (masks, scale) = (part(&words, 4)?, part(&words, 1)?);
        let (ids, positions) = (part(&words, tokens)?, part(&words, tokens)?);
        let bounds = part(&words, 2 * tokens)?.reshape((2, tokens))?;
        let mut placed = None;
        // A tensor without elements cannot be made on every device.
        if targets > 0 {
            placed = Some(PlacedTargets {
                rows: part(&words, targets)?,
                ids: part(&words, targets)?,
                scale,
                losses: gpu::empty(targets, DType::F32, device)?,
                correct: gpu::empty(targets, DType::U32, device)?,
            });
        }
        Ok(Self {
            words,
            ids,
            positions,
            masks,
            bounds,
            targets: placed,
        })
    }

    /// A copy of what the loss head found: the next micro-batch takes its place.
    pub(crate) fn found(&self) -> Result<Sums> {
        match &self.targets {
            None => Ok(Sums::NONE),
            Some(targets) => Ok(Sums::OnDevice {
                losses: targets.losses.copy()?,
                correct: targets.correct.copy()?,
            }),
        }
    }

    fn write(&self, batch: &MicroBatch, dropout: Option<&DropoutKey>, gradient_scale: Option<f32>) -> Result<()> {
        let rows = target_positions(&batch.targets);
        let mut words: Vec<u32> = Vec::with_capacity(self.words.elem_count());
        words.extend(dropout.map_or([0; 4], |key| key.masks.words()));
        words.push(gradient_scale.unwrap_or(0.0).to_bits());
        words.extend(&batch.input_ids);
        words.extend(&batch.positions);
        words.extend(attention::Documents::token_bounds(&batch.offsets));
        words.extend(&rows);
        words.extend(rows.iter().map(|row| batch.targets[*row as usize] as u32));
        gpu::overwrite(&self.words, &words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Document;
    use peft_tune_kernels::gpu::emulated;
    use peft_tune_kernels::ops::loss_head::IGNORE;

    fn batch(ids: &[u32], ignored: usize) -> MicroBatch {
        let labels = ids.iter().enumerate().map(|(index, id)| match index < ignored {
            true => IGNORE,
            false => i64::from(*id),
        });
        let mut batch = MicroBatch::from_documents(&[Document {
            input_ids: ids.to_vec(),
            labels: labels.collect(),
        }]);
        batch.push(&[1, 2], [1, 2].into_iter());
        batch
    }

    fn placed<'a>(stream: &'a Stream<'_>) -> Option<&'a PlacedTargets> {
        match stream.targets() {
            Targets::Real(targets) => targets.placed,
            Targets::Paper(_) => None,
        }
    }

    fn words(tensor: &Tensor) -> Vec<u32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn values(tensor: &tensor::Tensor) -> Vec<u32> {
        words(tensor.real().unwrap())
    }

    #[test]
    fn another_micro_batch_takes_the_place_of_one_of_its_size() {
        emulated(|| {
            let (first, second) = (batch(&[7, 8, 9], 0), batch(&[4, 5, 6], 0));
            let place = StreamBuffer::new(&first, &Device::Cpu).unwrap();
            let key = |step| Some(DropoutKey::new(0.1, 3, step, 5));
            let stream = Stream::onto(&place, &first, key(0), Some(0.5)).unwrap();
            let targets = |stream: &Stream<'_>| placed(stream).unwrap().clone();
            assert_eq!(
                (values(&stream.ids), values(&stream.positions)),
                (vec![7, 8, 9, 1, 2], vec![0, 1, 2, 0, 1])
            );
            assert_eq!(words(&targets(&stream).rows), [0, 1, 3]);
            // The tensors of the first see the second.
            let expected = Stream::onto(&place, &second, key(1), Some(0.25)).unwrap();
            let (placed, key) = (targets(&stream), expected.pass.dropout.as_ref().unwrap().masks.words());
            assert_eq!(values(&stream.ids), [4, 5, 6, 1, 2]);
            assert_eq!(
                (words(&placed.ids), words(&placed.scale)),
                (vec![5, 6, 2], vec![0.25f32.to_bits()])
            );
            assert_eq!(
                words(stream.documents().real().unwrap().bounds.unwrap()),
                [0, 0, 0, 3, 3, 3, 3, 3, 5, 5]
            );
            assert_eq!(
                words(stream.pass.dropout.unwrap().masks.on_device.as_ref().unwrap()),
                key
            );
        });
    }

    #[test]
    fn a_micro_batch_of_another_size_is_refused() {
        emulated(|| {
            let place = StreamBuffer::new(&batch(&[7, 8, 9], 0), &Device::Cpu).unwrap();
            for other in [batch(&[7, 8], 0), batch(&[7, 8, 9], 2)] {
                assert!(Stream::onto(&place, &other, None, None).is_err());
            }
        });
    }

    #[test]
    fn a_stream_without_targets_has_a_place_all_the_same() {
        emulated(|| {
            let mut none = batch(&[7, 8, 9], 3);
            none.targets.fill(IGNORE);
            let stream = Stream::new(&none, None, None, &Device::Cpu).unwrap();
            assert!(placed(&stream).is_none() && stream.documents().real().unwrap().bounds.is_some());
        });
    }
}
