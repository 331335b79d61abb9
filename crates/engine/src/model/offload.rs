//! Layer inputs that wait for the backward pass in the host's memory (`gradient_checkpointing: offload`).
//!
//! An input is on its way home while the next layers run, and on its way back while the layer above runs backward: the
//! device waits for a copy only where it would need the memory, or the input, before the copy is done.

use std::collections::VecDeque;

use candle_core::{DType, Device, Result, Shape, Tensor};

use peft_tune_kernels::gpu::{Copied, PinnedMemory, TransferStream, empty, has_transfer_stream};

/// Inputs on their way home, at most: their memory is the device's until they have arrived.
const UNDER_WAY: usize = 2;

/// Sends inputs home in the forward pass.
#[derive(Debug)]
pub(super) struct Offload {
    device: Device,
    /// Queue of the copies; absent where the device's memory is the host's, and where plain tensor ops are wanted.
    queue: Option<TransferStream>,
    under_way: VecDeque<Copied>,
}

/// An input in the host's memory.
#[derive(Debug)]
pub(super) struct DeviceToHost {
    shape: Shape,
    dtype: DType,
    copy: HostCopy,
}

#[derive(Debug)]
enum HostCopy {
    Tensor(Tensor),
    Room(PinnedMemory, TransferStream),
}

/// An input on its way back. The host's memory stays until it has arrived.
#[derive(Debug)]
pub(super) struct HostToDevice {
    back: Back,
    home: DeviceToHost,
}

#[derive(Debug)]
enum Back {
    Here(Tensor),
    UnderWay(Copied),
}

impl Offload {
    /// Prepares the offload of inputs on `device`.
    pub(super) fn new(device: &Device) -> Result<Self> {
        let queue = has_transfer_stream(device)
            .then(|| TransferStream::of(device))
            .transpose()?;
        Ok(Self {
            device: device.clone(),
            queue,
            under_way: VecDeque::new(),
        })
    }

    /// Sends `input` home.
    pub(super) fn put(&mut self, input: &Tensor) -> Result<DeviceToHost> {
        let copy = match &self.queue {
            None => HostCopy::Tensor(input.to_device(&Device::Cpu)?),
            Some(queue) => {
                let input = input.contiguous()?;
                let room = PinnedMemory::of(bytes(&input), &self.device)?;
                self.under_way
                    .push_back(queue.send(&input, &room.first(bytes(&input))?)?);
                HostCopy::Room(room, queue.clone())
            }
        };
        while self.under_way.len() > UNDER_WAY {
            self.under_way.pop_front().map(Copied::wait).transpose()?;
        }
        Ok(DeviceToHost {
            shape: input.shape().clone(),
            dtype: input.dtype(),
            copy,
        })
    }
}

impl DeviceToHost {
    pub(super) fn bytes(&self) -> usize {
        self.shape.elem_count() * self.dtype.size_in_bytes()
    }

    /// Begins to bring the input back to `device`.
    pub(super) fn fetch(self, device: &Device) -> Result<HostToDevice> {
        let back = match &self.copy {
            HostCopy::Tensor(tensor) => Back::Here(tensor.to_device(device)?),
            HostCopy::Room(room, queue) => {
                let input = empty(self.shape.clone(), self.dtype, device)?;
                Back::UnderWay(queue.fetch(&room.first(self.bytes())?, &input)?)
            }
        };
        Ok(HostToDevice { back, home: self })
    }
}

impl HostToDevice {
    pub(super) fn bytes(&self) -> usize {
        self.home.bytes()
    }

    /// The input, behind its copy.
    pub(super) fn arrive(self) -> Result<Tensor> {
        match self.back {
            Back::Here(tensor) => Ok(tensor),
            Back::UnderWay(copied) => copied.wait(),
        }
    }
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_kernels::gpu::emulated;

    #[test]
    fn inputs_come_back_as_they_went_however_late_the_copies_are_done() {
        emulated(|| {
            let mut offload = Offload::new(&Device::Cpu).unwrap();
            let input = |layer: usize| {
                let values = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap() + layer as f64;
                values.unwrap().reshape((3, 2)).unwrap().to_dtype(DType::BF16).unwrap()
            };
            let mut kept: Vec<DeviceToHost> = (0..5).map(|layer| offload.put(&input(layer)).unwrap()).collect();
            assert_eq!(offload.under_way.len(), UNDER_WAY);
            drop(offload);
            let mut coming = kept.pop().map(|last| last.fetch(&Device::Cpu).unwrap());
            let mut layer = 5;
            while let Some(one) = coming {
                layer -= 1;
                coming = kept.pop().map(|next| next.fetch(&Device::Cpu).unwrap());
                let same = one
                    .arrive()
                    .unwrap()
                    .eq(&input(layer))
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap();
                assert_eq!(
                    same.sum_all().unwrap().to_scalar::<f32>().unwrap(),
                    6.0,
                    "layer {layer}"
                );
            }
            assert_eq!(layer, 0);
        });
    }

    #[test]
    fn on_the_cpu_nothing_is_copied() {
        let input = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let kept = Offload::new(&Device::Cpu).unwrap().put(&input).unwrap();
        assert!(matches!(&kept.copy, HostCopy::Tensor(tensor) if tensor.id() == input.id()));
        assert_eq!(kept.bytes(), 16);
    }
}
