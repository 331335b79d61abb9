//! The values that a study's trials may have, as far as its file alone says them.

use super::Study;
use peft_tune_core::recipe::{AdapterSettings, OptimizerOffload, Precision, QuantizationAware, Recipe, TargetModules};
use peft_tune_core::study::ParamValue;

/// Values of one parameter that are looked at.
const MOST_VALUES: u64 = 64;

impl Study {
    /// The values that a parameter may have: the fixed one, or those that are sampled; none where the file does not name it, or
    /// gives it a range of real numbers.
    pub fn values(&self, parameter: &str) -> Vec<ParamValue> {
        if let Some(value) = self.fixed.get(parameter) {
            return vec![value.clone()];
        }
        let sampled = self.space.parameters.iter().find(|one| one.name == parameter);
        let Some(distribution) = sampled.map(|one| &one.distribution) else {
            return Vec::new();
        };
        let count = distribution.cardinality().unwrap_or(0).min(MOST_VALUES);
        (0..count).filter_map(|index| distribution.nth(index)).collect()
    }

    /// The sequence lengths that trials may have; that of `base` where the file does not name them.
    pub fn sequence_lengths(&self, base: &Recipe) -> Vec<usize> {
        let given = self.values("sequence_length").into_iter();
        let lengths: Vec<usize> = given.filter_map(|value| Some(value.as_f64()? as usize)).collect();
        match lengths.is_empty() {
            true => vec![base.batch.sequence_length],
            false => lengths,
        }
    }

    /// The parameters of the schedule that some trial may have in steps, while trials are not as long as the training that they
    /// stand for.
    pub fn schedule_in_steps(&self) -> Vec<&'static str> {
        let Some((base, train)) = self.base.as_ref().zip(self.plan.train.as_ref()) else {
            return Vec::new();
        };
        let of_base = [
            ("warmup", Some(base.schedule.warmup)),
            ("lr_decay", base.schedule.decay),
        ];
        let is_in_steps = |(name, of_base): &(&'static str, Option<f64>)| {
            let sampled = self.values(name).into_iter().filter_map(|value| value.as_f64());
            sampled.chain(*of_base).any(|value| value >= 1.0)
        };
        let parts = of_base.into_iter().filter(is_in_steps).map(|(name, _)| name);
        parts.filter(|_| train.length != base.training.length).collect()
    }

    /// The most devices that a trial may take.
    pub fn most_devices(&self) -> usize {
        let numbers = self.values("devices").into_iter().filter_map(|value| value.as_f64());
        numbers.fold(1.0, f64::max) as usize
    }

    /// Whether some trial may have its updates on the host.
    pub fn offloads_updates(&self) -> bool {
        let host = ParamValue::from(OptimizerOffload::Host.name());
        let base = self.base.as_ref();
        let is_fixed = base.is_some_and(|base| !base.optimizer.offload.is_none());
        is_fixed || self.values("optimizer_offload").contains(&host)
    }

    /// The adapters of `base` with each list of `target_modules` that trials may have.
    pub fn adapters(&self, base: &Recipe) -> Vec<AdapterSettings> {
        let Some(adapter) = &base.adapter else {
            return Vec::new();
        };
        let values = self.values("target_modules");
        if values.is_empty() {
            return vec![adapter.clone()];
        }
        let of_list = |value| match value {
            ParamValue::List(names) => Some(AdapterSettings {
                target_modules: TargetModules::Named(names.to_vec()),
                ..adapter.clone()
            }),
            _ => None,
        };
        values.into_iter().filter_map(of_list).collect()
    }

    /// The precisions that trials may have, with those of codes that they make of merged weights.
    pub fn precisions(&self, base: &Recipe) -> Vec<Precision> {
        let named = |value: ParamValue| Precision::from_name(&value.to_string());
        let mut all: Vec<Precision> = self.values("precision").into_iter().filter_map(named).collect();
        if all.is_empty() {
            all.push(base.precision);
        }
        let forms = self.values("quantization_aware").into_iter();
        let forms = forms.filter_map(|value| QuantizationAware::from_name(&value.to_string()));
        let of_codes = forms
            .chain([base.quantization_aware])
            .filter_map(|form| form.row().precision);
        all.extend(of_codes);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    #[test]
    fn values_are_fixed_sampled_or_those_of_the_recipe() {
        let text =
            "model: m\ndata: {train: [a.jsonl]}\nspace: {rank: [4, 8], precision: [bf16, nf4], learning_rate: 1e-4}\n";
        let options = ReadOptions { check_files: false };
        let study = StudyFile::parse(Path::new("study.yaml"), text, options).unwrap();
        let base = study.base.clone().unwrap();
        assert_eq!(study.values("rank").len(), 2);
        assert_eq!(study.values("no_parameter"), []);
        assert_eq!(study.sequence_lengths(&base), [base.batch.sequence_length]);
        assert_eq!(study.precisions(&base), [Precision::Bf16, Precision::Nf4]);
        assert!(!study.offloads_updates());
        assert_eq!(study.most_devices(), 1);
        assert!(study.schedule_in_steps().is_empty());
    }

    #[test]
    fn a_schedule_in_steps_is_told_where_trials_are_shorter_than_the_training() {
        let in_steps = |rest: &str| {
            let text = format!("model: m\ndata: {{train: [a.jsonl]}}\ntrial: {{training_steps: 6}}\n{rest}\n");
            let options = ReadOptions { check_files: false };
            let study = StudyFile::parse(Path::new("study.yaml"), &text, options).unwrap();
            study.schedule_in_steps()
        };
        let long = "training: {length: {steps: 60}}";
        let of = |space: &str, training: &str| in_steps(&format!("space: {space}\n{training}"));
        assert_eq!(of("{rank: [4, 8], warmup: 10}", long), ["warmup"]);
        assert_eq!(
            of("{warmup: [0.1, 10], schedule: wsd, lr_decay: 20}", long),
            ["warmup", "lr_decay"]
        );
        assert!(of("{rank: [4, 8], warmup: 0.1}", long).is_empty());
        assert!(of("{rank: [4, 8], warmup: 10}", "training: {length: {steps: 6}}").is_empty());
    }
}
