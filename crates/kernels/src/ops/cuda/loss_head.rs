//! The loss head: for each chunk of target positions one product into logits, one pass over them, one product back.

use candle_core::{DType, Device, Result, Tensor};

use crate::gpu::{Argument, Gemm, Matrix, Source, arguments, element_name, empty, source};
use crate::ops::loss_head::{Output, PlacedTargets, Settings, Sums, Targets, target_positions};

static SOURCE: Source = source!("loss_head");

/// Tensors that every chunk reads and writes.
struct Head<'a> {
    hidden: &'a Tensor,
    /// Weight in the dtype of the hidden states.
    weight: Tensor,
    settings: &'a Settings,
    targets: &'a PlacedTargets,
    /// Whether every position has a target, so that nothing needs to be gathered.
    all: bool,
    d_hidden: Option<Tensor>,
}

/// Loss of the stream and, with a gradient scale, the gradient of the hidden states; the head's gradient is added to
/// `weight_gradient` (F32). The tensors are contiguous.
pub(crate) fn forward(
    hidden: &Tensor,
    weight: &Tensor,
    targets: Targets<'_>,
    settings: &Settings,
    weight_gradient: Option<&Tensor>,
) -> Result<Output> {
    let d_hidden = settings.gradient_scale.map(|_| hidden.zeros_like()).transpose()?;
    let device = hidden.device();
    let placed = match targets.placed {
        Some(placed) => Some(placed.clone()),
        None => place(targets.values, settings, device)?,
    };
    let Some(placed) = placed else {
        return Ok(Output {
            sums: Sums::NONE,
            target_tokens: 0,
            d_hidden,
        });
    };
    let count = placed.rows.dim(0)?;
    let head = Head {
        hidden,
        weight: weight.to_dtype(hidden.dtype())?.contiguous()?,
        settings,
        targets: &placed,
        all: count == targets.values.len(),
        d_hidden,
    };
    let chunk = settings.chunk_tokens.clamp(1, count);
    let logits = empty((chunk, head.weight.dim(0)?), DType::F32, device)?;
    for first in (0..count).step_by(chunk) {
        head.chunk(first, chunk.min(count - first), &logits, weight_gradient)?;
    }
    Ok(Output {
        d_hidden: head.d_hidden,
        sums: Sums::OnDevice {
            losses: placed.losses,
            correct: placed.correct,
        },
        target_tokens: count as u64,
    })
}

/// Puts targets on `device`; `None` where there are none.
fn place(targets: &[i64], settings: &Settings, device: &Device) -> Result<Option<PlacedTargets>> {
    let rows = target_positions(targets);
    if rows.is_empty() {
        return Ok(None);
    }
    let ids: Vec<u32> = rows.iter().map(|row| targets[*row as usize] as u32).collect();
    Ok(Some(PlacedTargets {
        rows: Tensor::from_slice(&rows, rows.len(), device)?,
        ids: Tensor::from_slice(&ids, ids.len(), device)?,
        scale: Tensor::new(&[settings.gradient_scale.unwrap_or(0.0).to_bits()], device)?,
        losses: Tensor::zeros(rows.len(), DType::F32, device)?,
        correct: Tensor::zeros(rows.len(), DType::U32, device)?,
    }))
}

impl Head<'_> {
    fn chunk(&self, first: usize, count: usize, logits: &Tensor, weight_gradient: Option<&Tensor>) -> Result<()> {
        let (vocabulary, width) = self.weight.dims2()?;
        let (logits, rows) = (logits.narrow(0, 0, count)?, self.targets.rows.narrow(0, first, count)?);
        let inputs = match self.all {
            true => self.hidden.narrow(0, first, count)?,
            false => self.move_rows(
                "gather_rows",
                self.hidden,
                &rows,
                &empty((count, width), self.dtype(), self.device())?,
            )?,
        };
        let weight = Matrix::new(&self.weight)?;
        Gemm::new(Matrix::new(&inputs)?, weight.t()).run(&logits)?;
        self.losses(first, &logits)?;
        let Some(d_hidden) = &self.d_hidden else { return Ok(()) };
        // The gradient lies in the logits' memory, in narrower elements: a row still begins where it did.
        let d_logits = Matrix {
            dtype: self.dtype(),
            stride: vocabulary * 4 / self.dtype().size_in_bytes(),
            ..Matrix::new(&logits)?
        };
        match self.all {
            true => Gemm::new(d_logits, weight).run(&d_hidden.narrow(0, first, count)?)?,
            false => {
                let d_inputs = empty((count, width), self.dtype(), self.device())?;
                Gemm::new(d_logits, weight).run(&d_inputs)?;
                self.move_rows("scatter_rows", &d_inputs, &rows, d_hidden)?;
            }
        }
        let Some(into) = weight_gradient else { return Ok(()) };
        let product = Gemm {
            beta: 1.0,
            ..Gemm::new(d_logits.t(), Matrix::new(&inputs)?)
        };
        product.run(into)
    }

    /// Losses of a chunk; turns its logits into their gradient where one is wanted.
    fn losses(&self, first: usize, logits: &Tensor) -> Result<()> {
        let (count, vocabulary) = logits.dims2()?;
        let part = |tensor: &Tensor| tensor.narrow(0, first, count);
        let placed = self.targets;
        let (targets, losses, correct) = (part(&placed.ids)?, part(&placed.losses)?, part(&placed.correct)?);
        let arguments = arguments! {
            logits, &targets, &losses, &correct, vocabulary as u32,
            self.settings.soft_cap.unwrap_or(0.0) as f32,
            self.settings.gradient_scale.map(|_| &placed.scale),
        };
        self.launch("loss", count, 512, &arguments)
    }

    fn move_rows(&self, kernel: &str, from: &Tensor, rows: &Tensor, to: &Tensor) -> Result<Tensor> {
        let arguments = arguments! { from, rows, to, to.dim(1)? as u32 };
        self.launch(kernel, rows.dim(0)?, 256, &arguments)?;
        Ok(to.clone())
    }

    fn launch(&self, kernel: &str, blocks: usize, threads: usize, arguments: &[Argument<'_>]) -> Result<()> {
        let name = format!("{kernel}_{}", element_name(self.dtype()).unwrap_or_default());
        let launch = SOURCE.launch(&name, [blocks, 1, 1], [threads, 1, 1]);
        launch.run(self.device(), arguments)
    }

    fn dtype(&self) -> DType {
        self.hidden.dtype()
    }

    fn device(&self) -> &Device {
        self.hidden.device()
    }
}
