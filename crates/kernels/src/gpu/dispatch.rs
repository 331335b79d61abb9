//! The way of a launch to its device: the driver of a GPU, or the emulator.

use candle_core::{Device, Result};

use super::launch::{Argument, Launch};

impl Launch<'_> {
    /// Puts the kernel at the end of the device's queue.
    ///
    /// # Errors
    /// A tensor elsewhere or not contiguous, a kernel that does not compile, memory, a device that has failed.
    pub fn run(&self, device: &Device, arguments: &[Argument<'_>]) -> Result<()> {
        if self.blocks.contains(&0) {
            return Ok(());
        }
        for argument in arguments {
            if let Argument::Tensor(tensor) | Argument::Maybe(Some(tensor)) = argument
                && !tensor.is_contiguous()
            {
                candle_core::bail!("{}: a kernel needs contiguous tensors", self.kernel);
            }
        }
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => super::runtime::launch(device, self, arguments),
            #[cfg(any(test, feature = "emulator"))]
            Device::Cpu => super::emulator::launch(self, arguments),
            _ => candle_core::bail!("{}: no kernel for {device:?}", self.kernel),
        }
    }
}
