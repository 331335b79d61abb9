//! Sizes of a model whose products stay in range: a file is damaged that says more, and sums of 64 bits would be wrong numbers.

use super::StackError;
use super::shape::ModelShape;

/// Parameters beyond what any model has.
const MOST_PARAMETERS: u64 = 1 << 50;

impl ModelShape {
    /// The shape, called `file` in errors, where each size is one that some model could have.
    ///
    /// # Errors
    /// A size that is out of range, alone or with those that it is multiplied with.
    pub(super) fn in_range(self, file: &str) -> Result<Self, StackError> {
        let experts = self.experts.map_or([0; 4], |experts| {
            let of_all = experts.count.saturating_mul(experts.width);
            let of_token = experts.active.saturating_mul(experts.width);
            [experts.active, of_all, of_token, experts.shared]
        });
        let check = |key: &str, value: u64, most: u64| match value <= most {
            true => Ok(()),
            false => Err(StackError::OutOfRange {
                file: file.into(),
                key: key.into(),
                value: value.to_string(),
                most,
            }),
        };
        check("hidden_size", self.hidden, 1 << 20)?;
        check("intermediate_size", self.intermediate, 1 << 22)?;
        check("heads x head_dim", self.heads.saturating_mul(self.head_dim), 1 << 22)?;
        check(
            "key heads x head_dim",
            self.kv_heads.saturating_mul(self.head_dim),
            1 << 22,
        )?;
        let [active, of_all, of_token, shared] = experts;
        check("num_experts_per_tok", active, 1 << 10)?;
        check("experts x width", of_all, 1 << 26)?;
        check("num_experts_per_tok x width", of_token, 1 << 24)?;
        check("shared experts x width", shared, 1 << 24)?;
        // No product of these overflows, so that they can be counted.
        check("parameters", self.parameters(), MOST_PARAMETERS)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::behaviour::{AttentionForm, StackBehaviour};
    use super::super::predictor::predict;
    use super::super::setting::StackSetting;
    use super::super::weight_form::WeightForm;
    use super::*;

    fn shape(more: &Value) -> Result<ModelShape, StackError> {
        let mut config = json!({"model_type": "newcomer", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16,
            "intermediate_size": 4096, "vocab_size": 32_000});
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelShape::from_json("config.json", &config)
    }

    #[test]
    fn sizes_whose_products_no_model_has_are_refused_by_name() {
        for (more, key) in [
            (
                json!({"num_attention_heads": 1 << 14, "head_dim": 1 << 14}),
                "heads x head_dim",
            ),
            (
                json!({"num_local_experts": 1 << 14, "num_experts_per_tok": 2, "moe_intermediate_size": 1 << 20}),
                "experts x width",
            ),
            (
                json!({"num_local_experts": 1 << 12, "num_experts_per_tok": 1 << 12, "moe_intermediate_size": 64}),
                "num_experts_per_tok",
            ),
            (
                json!({"hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 1 << 12}),
                "parameters",
            ),
            (
                json!({"model_type": "llama", "hidden_size": 1 << 22, "max_position_embeddings": 64}),
                "hidden_size",
            ),
        ] {
            let error = shape(&more).unwrap_err().to_string();
            assert!(error.contains(key), "{more}: {error}");
        }
    }

    #[test]
    fn the_largest_sizes_are_predicted_without_an_overflow() {
        let largest = shape(
            &json!({"hidden_size": 1 << 20, "num_attention_heads": 1 << 8, "head_dim": 1 << 14,
            "intermediate_size": 1 << 22, "vocab_size": 1 << 24, "num_hidden_layers": 2}),
        );
        let mut setting = StackSetting::new(&StackBehaviour::PLAIN, WeightForm::Numbers);
        (setting.micro_batch, setting.sequence_length) = (4, 1 << 22);
        for attention in [AttentionForm::Eager, AttentionForm::Sdpa, AttentionForm::Flash] {
            setting.attention = attention;
            assert!(
                predict(largest.as_ref().unwrap(), &setting, None).is_ok(),
                "{attention:?}"
            );
        }
        let many = shape(&json!({"num_attention_heads": 1 << 14, "head_dim": 1})).unwrap();
        let error = predict(&many, &setting, None).unwrap_err().to_string();
        assert!(error.contains("heads"), "{error}");
    }
}
