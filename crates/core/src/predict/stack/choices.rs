//! [`StackChoices`]: what a stack's own file says of a training, and no recipe does.

use super::behaviour::{AttentionForm, LossForm, Number};
use super::setting::{OptimizerForm, Sharing, StackSetting};

/// Dtypes of a training, where weights and products need not have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtypes {
    /// Dtype of weights that are not quantized.
    pub loads: Number,
    /// Dtype of products.
    pub computes: Number,
    /// Products run under autocast, where the stack has it.
    pub autocast: bool,
}

/// Choices of a stack's file that no recipe has: its kernels, dtypes and sharing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StackChoices {
    /// Dtypes of weights and products; absent, the recipe's precision for all of them.
    pub dtypes: Option<Dtypes>,
    /// Form of attention; absent, the stack's own.
    pub attention: Option<AttentionForm>,
    /// Form of the loss; absent, the stack's own.
    pub loss: Option<LossForm>,
    /// Norms, rotation and MLP activation are one kernel each, also where the stack alone would not have it so.
    pub fused: bool,
    /// LoRA's products are written by hand, also where the stack alone would not have it so.
    pub fused_lora: bool,
    /// States of an optimizer that no recipe has; absent: those of the recipe's.
    pub optimizer: Option<OptimizerForm>,
    /// Updates need temporaries as large as all parameters; absent: as the stack's AdamW has it.
    pub foreach: Option<bool>,
    /// Updates run inside the backward pass.
    pub updates_in_backward: bool,
    /// Sharing of weights and states; absent, as the recipe has it.
    pub sharing: Option<Sharing>,
    /// Whether what is shared out lies in the host's memory.
    pub offloads: bool,
}

impl StackSetting {
    /// The setting with what the stack's file says beside the recipe.
    pub fn with(mut self, choices: &StackChoices) -> Self {
        let StackChoices {
            dtypes,
            attention,
            loss,
            fused,
            fused_lora,
            optimizer,
            foreach,
            updates_in_backward,
            sharing,
            offloads,
        } = *choices;
        if let Some(dtypes) = dtypes {
            self = self.with_dtypes(dtypes);
        }
        self.attention = attention.unwrap_or(self.attention);
        self.loss = loss.unwrap_or(self.loss);
        match loss {
            // It never has them as a whole.
            Some(LossForm::FusedLinear) => self.holds_logits = false,
            // Returned by the model, and raised to F32 on the way (accelerate).
            Some(LossForm::InPlace) => (self.holds_logits, self.raises_outputs) = (true, true),
            _ => {}
        }
        self.fused |= fused;
        self.fused_lora |= fused_lora;
        self.optimizer = optimizer.unwrap_or(self.optimizer);
        self.optimizer.foreach = foreach.unwrap_or(self.optimizer.foreach);
        self.optimizer.in_backward |= updates_in_backward;
        self.sharing = sharing.unwrap_or(self.sharing);
        self.offloads |= offloads;
        self
    }

    fn with_dtypes(self, dtypes: Dtypes) -> Self {
        let Dtypes {
            loads,
            computes,
            autocast,
        } = dtypes;
        Self {
            loads,
            computes,
            autocast: autocast && self.stack.autocast,
            adapters: match computes {
                Number::F32 => Number::F32,
                Number::Half => self.stack.adapters[usize::from(self.weights.is_quantized())],
            },
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::behaviour::StackBehaviour;
    use super::*;
    use crate::recipe::{DataSettings, Precision, Recipe};

    const STACK: StackBehaviour = StackBehaviour {
        autocast: true,
        adapters: [Number::Half, Number::Half],
        ..StackBehaviour::PLAIN
    };

    #[test]
    fn a_file_that_says_nothing_beside_the_recipe_leaves_the_setting_as_it_is() {
        for precision in Precision::ALL {
            let mut recipe = Recipe::new("model", DataSettings::default());
            recipe.precision = precision;
            let setting = StackSetting::of_recipe(&STACK, &recipe);
            assert_eq!(setting.clone().with(&StackChoices::default()), setting, "{precision}");
        }
    }

    #[test]
    fn what_a_file_says_goes_before_the_stack_and_the_recipe() {
        let recipe = Recipe::new("model", DataSettings::default());
        let of = |choices| StackSetting::of_recipe(&STACK, &recipe).with(&choices);
        let setting = of(StackChoices {
            loss: Some(LossForm::FusedLinear),
            foreach: Some(false),
            sharing: Some(Sharing::Zero3),
            offloads: true,
            ..StackChoices::default()
        });
        assert_eq!(
            (setting.loss, setting.holds_logits, setting.optimizer.foreach),
            (LossForm::FusedLinear, false, false)
        );
        assert_eq!((setting.sharing, setting.offloads), (Sharing::Zero3, true));
        let dtypes = |loads, computes, autocast| {
            let dtypes = Some(Dtypes {
                loads,
                computes,
                autocast,
            });
            let setting = of(StackChoices {
                dtypes,
                ..StackChoices::default()
            });
            (setting.autocast, setting.adapters)
        };
        assert_eq!(dtypes(Number::F32, Number::Half, true), (true, Number::Half));
        assert_eq!(dtypes(Number::F32, Number::F32, false), (false, Number::F32));
    }
}
