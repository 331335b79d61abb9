//! What stands in the place of attention in some layers: what its passes hold, free and compute, in the engine's order.

use super::memory_category::MemoryCategory;
use super::op::{Module, Pass, Work};
use super::trace::Trace;
use super::tracer::{StepTracer, Target};
use crate::architecture::{DeltaRule, Mixer};
use crate::plan::passes::gated_norm_room;
use crate::plan::{LayerPlan, SavedTensor};

use MemoryCategory::{AttentionWorkspace, SavedActivations, Scratch};

impl StepTracer<'_> {
    /// The stream behind the mixer into `target`, what it keeps into `kept`.
    pub(super) fn mixer_forward(
        &self,
        trace: &mut Trace,
        kind: &LayerPlan,
        kept: MemoryCategory,
        target: MemoryCategory,
    ) {
        let normed = self.norm_before(trace, kept);
        self.group_forward(trace, (&kind.qkv, Module::QueryKeyValue), kept, Target::New(kept));
        trace.free(Scratch, normed);
        if let Mixer::DeltaRule(rule) = kind.mixer {
            let convolved = self.convolve(trace, rule.input_width(), rule.taps);
            trace.hold(kept, self.act(rule.output_width()));
            self.delta_rule(trace, rule, false);
            trace.free(Scratch, convolved);
        }
        let mixed = self.mixed(trace, kind);
        self.out(trace, (&kind.output, Module::Output), kept, target);
        trace.free(Scratch, mixed);
    }

    /// What the output projection reads of what was kept, into the scratch; returns its bytes. 0 where attention's own output is
    /// kept.
    pub(super) fn mixed(&self, trace: &mut Trace, kind: &LayerPlan) -> u64 {
        match kind.mixer {
            Mixer::Attention => self.gated(trace, kind),
            Mixer::Convolution(convolution) => {
                self.convolve(trace, self.plan.architecture.hidden_size, convolution.taps)
            }
            Mixer::DeltaRule(rule) => {
                let width = rule.output_width();
                trace.hold(Scratch, self.act(width));
                self.pass(trace, Module::Attention, Pass::GluForward, width);
                self.act(width)
            }
        }
    }

    /// A convolution of `width` channels into the scratch.
    fn convolve(&self, trace: &mut Trace, width: usize, taps: usize) -> u64 {
        trace.hold(Scratch, self.act(width));
        self.convolution_pass(trace, width, taps);
        self.act(width)
    }

    /// A convolution whose result is held already: its taps, and a row of sums for each thread.
    fn convolution_pass(&self, trace: &mut Trace, width: usize, taps: usize) {
        trace.spike(Scratch, (4 * width * (taps + self.host.threads)) as u64);
        self.pass(trace, Module::Attention, Pass::GluForward, width);
    }

    /// A pass of the rule itself, whose results are held already.
    fn delta_rule(&self, trace: &mut Trace, rule: DeltaRule, backward: bool) {
        let longest = self.stream.longest();
        let documents: f64 = self.stream.documents.iter().map(|documents| documents.count).sum();
        let tasks = (documents.ceil() as usize * rule.key_heads).min(self.host.threads) as u64;
        let task = match backward {
            false => rule.forward_bytes(longest),
            true => rule.backward_bytes(longest),
        };
        trace.spike(AttentionWorkspace, self.wide(2 * rule.value_heads) + tasks * task);
        trace.run(Work::DeltaRule {
            state: rule.value_heads * rule.state(),
            backward,
        });
    }

    /// Backward through the mixer; see [`StepTracer::attention_backward`].
    pub(super) fn mixer_backward(&self, trace: &mut Trace, kind: &LayerPlan, d_output: u64, wants_dx: bool) {
        let hidden = self.plan.architecture.hidden_size;
        let output = (&kind.output, Module::Output);
        self.group_backward(trace, output, |trace| self.mixed(trace, kind), d_output, true);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::OutputXa]));
        match kind.mixer {
            Mixer::Attention => {}
            Mixer::Convolution(convolution) => {
                self.convolve(trace, hidden, convolution.taps);
                trace.hold(Scratch, self.act(2 * hidden));
                self.convolution_pass(trace, hidden, convolution.taps);
                trace.free(Scratch, self.act(hidden));
                trace.free(SavedActivations, self.saved(kind, &[SavedTensor::MixerInput]));
            }
            Mixer::DeltaRule(rule) => self.delta_backward(trace, kind, rule),
        }
        let wants_d_normed = wants_dx || kind.input_norm_trains;
        let group = (&kind.qkv, Module::QueryKeyValue);
        let d_projected = self.act(kind.qkv.outputs());
        self.group_backward(
            trace,
            group,
            |trace| self.input_again(trace),
            d_projected,
            wants_d_normed,
        );
        if wants_dx {
            self.norm_onto(trace);
        } else {
            self.last_norm_weight(trace, kind);
            trace.free(Scratch, self.act(hidden) * (1 + u64::from(wants_d_normed)));
        }
        let freed = [SavedTensor::Input, SavedTensor::QkvXa];
        trace.free(SavedActivations, self.saved(kind, &freed));
    }

    /// From the gradient of what the output projection read to those of the input projections' outputs.
    fn delta_backward(&self, trace: &mut Trace, kind: &LayerPlan, rule: DeltaRule) {
        let (input, output) = (rule.input_width(), rule.output_width());
        if self.norms_train() {
            let room = gated_norm_room(self.tokens * output, self.c());
            trace.spike(Scratch, room);
        }
        // d_o and d_z for the gradient of their product.
        trace.hold(Scratch, self.act(2 * output));
        self.pass(trace, Module::Attention, Pass::GluBackward, output);
        trace.free(Scratch, self.act(output));
        let z = self.act(output);
        trace.free(SavedActivations, self.saved(kind, &[SavedTensor::AttentionOutput]) + z);
        let convolved = self.convolve(trace, input, rule.taps);
        trace.hold(Scratch, self.act(input + 2 * rule.value_heads));
        self.delta_rule(trace, rule, true);
        trace.free(Scratch, convolved + self.act(output));
        trace.free(SavedActivations, self.act(2 * rule.value_heads));
        trace.hold(Scratch, self.act(input));
        let rings = (4 * self.host.threads * rule.taps * input) as u64;
        trace.spike(Scratch, rings);
        self.convolution_pass(trace, input, rule.taps);
        trace.free(Scratch, self.act(input));
        trace.free(SavedActivations, self.act(input));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::architecture::{Architecture, Mixer};
    use crate::predict::{Machine, Predictor, Setting, Workload, device};
    use crate::recipe::{AdapterSettings, DataSettings, Recipe};

    const SIZES: &str = r#""vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 12288, "max_position_embeddings": 32768"#;

    #[test]
    fn flops_are_those_of_the_linear_layers_of_attending_layers_and_of_states() {
        let tokens = 2048.0;
        for (family, more) in [
            ("lfm2", r#""full_attn_idxs": [2, 5, 8]"#),
            ("qwen3_5_text", r#""head_dim": 64"#),
        ] {
            let text = format!(r#"{{"model_type": "{family}", {SIZES}, {more}}}"#);
            let model = Architecture::from_json(Path::new("config.json"), &text).unwrap();
            let predictor = Predictor::new(model.clone(), Machine::DataSheet(device("A100 80GB").unwrap()));
            let mut recipe = Recipe::new("model", DataSettings::default());
            recipe.batch.micro_batch = 1;
            recipe.batch.sequence_length = 2048;
            recipe.adapter = Some(AdapterSettings {
                rank: 1,
                ..AdapterSettings::default()
            });
            let workload = Workload::full(1, 2048);
            let setting = Setting {
                recipe: &recipe,
                workload: &workload,
            };
            let flops = predictor.flops(&setting).unwrap();
            let count = model.parameter_count();
            let head = if model.tied_embeddings {
                count.embedding
            } else {
                count.lm_head
            };
            let of_mixer = |index: usize| match model.mixer(index) {
                Mixer::Attention => 4.0 * tokens * tokens / 2.0 * model.query_size(index) as f64,
                Mixer::Convolution(_) => 0.0,
                Mixer::DeltaRule(rule) => 6.0 * tokens * (rule.value_heads * rule.state()) as f64,
            };
            let expected = 2.0 * tokens * (count.linear + head) as f64 + (0..16).map(of_mixer).sum::<f64>();
            assert!((flops.forward / expected - 1.0).abs() < 0.01, "{family}: {flops:?}");
        }
    }
}
