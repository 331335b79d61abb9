//! The model that a trainer is given, followed back to the call that loads it, with the adapters that are added on the way.

use super::calls::{ModelKind, is_of_unsloth, model_kind};
use super::run::{Bound, Called, Run};
use super::value::{Evaluated, Known};

/// Steps back that are taken at the most.
const MOST_STEPS: usize = 40;

/// Functions that give back the model that is their first argument.
const WRAPPERS: &[&str] = &[
    "prepare_model_for_kbit_training",
    "prepare_model_for_int8_training",
    "setup_chat_format",
    "clone_chat_template",
    "prepare",
    "compile",
    "for_training",
    "for_inference",
    "patch_model",
];

/// Methods of a model that give the model back.
const KEEP_MODEL: &[&str] = &[
    "to",
    "cuda",
    "cpu",
    "half",
    "float",
    "bfloat16",
    "train",
    "eval",
    "merge_and_unload",
];

/// What a trainer's model is made of.
#[derive(Default)]
pub(super) struct Made<'r> {
    pub loaded: Option<&'r Called>,
    pub adapter: Option<&'r Called>,
    /// Whether an adapter is added whose settings are not known.
    pub has_unknown_adapter: bool,
    /// Call that adds an adapter which was trained before.
    pub started: Option<&'r Called>,
    /// Whether the trainer is given the model's name.
    pub is_text: bool,
}

impl<'r> Made<'r> {
    /// Follows a model back.
    pub(super) fn of(run: &'r Run<'r>, model: &'r Evaluated) -> Self {
        let mut made = Self::default();
        let mut known = &model.known;
        for _ in 0..MOST_STEPS {
            known = match known {
                Known::Part(whole, _) => &**whole,
                Known::Result(id) => match run.calls.get(*id).and_then(|call| made.step(run, call)) {
                    Some(next) => next,
                    None => break,
                },
                Known::Plain(text) => {
                    made.is_text = text.is_string();
                    break;
                }
                _ => break,
            };
        }
        made
    }

    /// Notes a call on the way, and gives what it was made of; `None` where the way ends.
    fn step(&mut self, run: &'r Run<'r>, call: &'r Called) -> Option<&'r Known> {
        let name = call.short_name();
        let model = call
            .argument("model", Some(0))
            .map(|bound: &'r Bound| &bound.value.known);
        match model_kind(call) {
            // `PeftModel` is given the model, and the other class loads it.
            Some(ModelKind::WithAdapter) if !call.owner().starts_with("Auto") => {
                self.started = Some(call);
                model
            }
            Some(kind) => {
                self.loaded = Some(call);
                self.started = self.started.or((kind == ModelKind::WithAdapter).then_some(call));
                None
            }
            None if name == "get_peft_model" => {
                self.add(run, call);
                model
            }
            None if WRAPPERS.contains(&name) => model,
            None if KEEP_MODEL.contains(&name) => call.receiver.as_ref().map(|receiver| &receiver.known),
            None => None,
        }
    }

    /// Notes the adapter that a call adds, where none was added behind it.
    fn add(&mut self, run: &'r Run<'r>, call: &'r Called) {
        if self.adapter.is_some() || self.has_unknown_adapter {
            return;
        }
        self.adapter = match is_of_unsloth(call.owner()) {
            true => Some(call),
            false => {
                let config = call.argument("peft_config", Some(1));
                config.and_then(|config| run.result(&config.value))
            }
        };
        self.has_unknown_adapter = self.adapter.is_none();
    }
}
