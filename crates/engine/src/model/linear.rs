//! Linear layers that read the same input: those of one training, or of several that go through them together.

use candle_core::Result;

use super::adapted_group::AdaptedGroup;
use super::adapter_pass::AdapterPass;
use super::together::SharedGroup;
use crate::span;
use crate::span::Module;
use crate::tensor::Tensor;

/// Projections of one input, in one module.
#[derive(Debug)]
pub(super) struct LinearGroup {
    /// Module of the layer that the group is.
    pub module: Module,
    pub adapted: AdaptedGroup,
    /// Groups of the same module in several trainings, whose adapters these are then; see [`super::together`].
    pub members: Vec<AdaptedGroup>,
}

impl LinearGroup {
    /// Computes what adapters need of the parameters as they are now; before each pass, on paper where `ids` are.
    pub(super) fn refresh(&self, ids: &Tensor) -> Result<()> {
        self.adapted.refresh(ids)?;
        self.members.iter().try_for_each(|member| member.refresh(ids))
    }

    /// The projections with the adapters of all trainings, where several go through them.
    fn shared(&self) -> Option<SharedGroup<'_>> {
        let shared = SharedGroup {
            base: &self.adapted,
            members: &self.members,
        };
        (!self.members.is_empty()).then_some(shared)
    }

    /// The outputs (T, out) of all projections, and xa of all adapters.
    pub(super) fn forward(&self, x: &Tensor, pass: &AdapterPass) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let _span = span::module(self.module);
        self.observe(x, pass)?;
        let Some(shared) = self.shared() else {
            return self.adapted.forward(x, pass);
        };
        let xa = shared.products(x, pass)?;
        Ok((shared.outputs(x, &xa, None, pass)?, xa))
    }

    /// Adds what the group reads to the sums, where somebody asks for them.
    fn observe(&self, x: &Tensor, pass: &AdapterPass) -> Result<()> {
        match &pass.sums {
            Some(sums) => sums.add(self.adapted.projections.iter().map(|projection| projection.module), x),
            None => Ok(()),
        }
    }

    /// Adds the output of a group with one projection to y (T, out), and returns xa with it as [`LinearGroup::forward`]
    /// does.
    pub(super) fn forward_onto(&self, y: &Tensor, x: &Tensor, pass: &AdapterPass) -> Result<(Tensor, Vec<Tensor>)> {
        self.observe(x, pass)?;
        let xa = self.recompute(x, pass)?;
        Ok((self.recompute_output(Some(y), x, &xa, pass)?, xa))
    }

    /// The output of a group of one projection from the xa that the forward pass kept; added to y where there is one.
    pub(super) fn recompute_output(
        &self,
        y: Option<&Tensor>,
        x: &Tensor,
        xa: &[Tensor],
        pass: &AdapterPass,
    ) -> Result<Tensor> {
        let _span = span::module(self.module);
        if let Some(shared) = self.shared() {
            return only(&shared.outputs(x, xa, y, pass)?).cloned();
        }
        let projection = only(&self.adapted.projections)?;
        projection.forward(&self.adapted.input(x, pass), xa, y)
    }

    /// Tensors that [`LinearGroup::forward`] keeps, without the outputs: xa of all adapters.
    pub(super) fn recompute(&self, x: &Tensor, pass: &AdapterPass) -> Result<Vec<Tensor>> {
        let _span = span::module(self.module);
        match self.shared() {
            Some(shared) => shared.products(x, pass),
            None => self.adapted.adapter_products(&self.adapted.input(x, pass)),
        }
    }

    /// Whether backward needs the group's input: where something of it trains.
    pub(super) fn reads_input(&self) -> bool {
        self.adapted.reads_input() || self.members.iter().any(|member| !member.adapters.is_empty())
    }

    /// Adds the gradients of all that trains here and returns dx where `wants_dx`.
    ///
    /// `x` makes the input of the forward pass again and is called only where it is needed; `xa` is that pass's, and
    /// `dys` are the gradients of its outputs.
    pub(super) fn backward(
        &self,
        x: impl FnOnce() -> Result<Tensor>,
        xa: &[Tensor],
        dys: Vec<Tensor>,
        pass: &AdapterPass,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(self.module);
        if !self.reads_input() {
            return self.adapted.backward_frozen(dys, wants_dx);
        }
        if self.adapted.owners.is_some() {
            candle_core::bail!("several adapters side by side answer, and do not train");
        }
        let x = x()?;
        match self.shared() {
            Some(shared) => shared.backward(x, xa, dys, pass, wants_dx),
            None => self.adapted.backward(x, xa, dys, pass, wants_dx),
        }
    }
}

/// The projection of a group that has one, or its output.
pub(super) fn only<T>(of_projections: &[T]) -> Result<&T> {
    match of_projections {
        [one] => Ok(one),
        other => candle_core::bail!("one projection was expected, not {}", other.len()),
    }
}

/// A gradient that a group with projections has.
pub(super) fn expect_gradient(dx: Option<Tensor>) -> Result<Tensor> {
    dx.ok_or_else(|| candle_core::Error::Msg("a linear group without projections has no gradient".into()))
}
