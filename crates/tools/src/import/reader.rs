//! A file as it is read: its keys, the recipe so far, and what is to be said.

use std::collections::BTreeSet;

use serde_json::Value;

use super::interpolation::referred;
use super::one_line::on_one_line;
use super::passed_over::{Concern, PassedOver};
use super::script_options::merged;
use super::unsaid::{Unsaid, set_elsewhere};
use super::{AskedLater, Imported, Keys, Script, StackFileError};
use crate::known_keys::{is_off, written};
use crate::{Tool, optimizer_called};
use peft_tune_core::predict::stack::{StackBehaviour, StackChoices};
use peft_tune_core::recipe::settings::{Legal, SettingRow, setting, settings};
use peft_tune_core::recipe::{Checkpointing, DataSettings, HeldOut, ParamValue, Recipe, ScheduleKind};

/// Settings whose keys mean more than their value says; each has a reader of its own.
const OWN_READERS: [&str; 13] = [
    "method",
    "precision",
    "target_modules",
    "init",
    "optimizer",
    "schedule",
    "warmup",
    "max_grad_norm",
    "gradient_checkpointing",
    "group_by_length",
    "prefetch_depth",
    "attn_implementation",
    "dataloader_num_workers",
];

/// Note on keys that share a model out.
const SHARED_OUT: &str =
    "the file does not say on how many devices; to share weights out, write `devices` and `sharding: full`";

/// Note on DeepSpeed's file, which is not read.
const DEEPSPEED: &str = "the file does not say on how many devices; to share weights out, write `devices` and `sharding: full`, and for \
     `offload_optimizer` write `optimizer_offload: host`";

/// Keys of whole parts of other tools that trials here do without, with what is to be said.
const WITHOUT: [(&str, &str); 3] = [
    ("deepspeed", DEEPSPEED),
    ("fsdp", SHARED_OUT),
    ("fsdp_config", SHARED_OUT),
];

/// The file and what has been read of it.
pub(crate) struct Reader<'a> {
    pub keys: &'a Keys<'a>,
    /// The script that the keys are of, where they are of one.
    pub script: Option<&'a Script>,
    /// The text of a file with keys, whose values may refer to each other; empty for a script and for commands.
    pub text: &'a str,
    /// The tool whose words the file has.
    pub tool: Tool,
    pub recipe: Recipe,
    /// What the file says of the tool's training beside the recipe.
    pub choices: StackChoices,
    /// Numbers that depend on how many rows the data have.
    pub later: AskedLater,
    /// Rows are as long as they come: nothing cuts them.
    pub is_uncut: bool,
    /// A regular expression in the place of the target modules.
    pub expression: Option<String>,
    trains: Tool,
    said: BTreeSet<&'static str>,
    passed_over: PassedOver,
    notes: Vec<String>,
    data_notes: Vec<String>,
    assumed: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(keys: &'a Keys<'a>, [trains, tool]: [Tool; 2]) -> Self {
        let data = DataSettings {
            held_out: HeldOut::Files(Vec::new()),
            ..DataSettings::default()
        };
        Self {
            keys,
            script: None,
            text: "",
            tool,
            recipe: Recipe::new("", data),
            choices: StackChoices::default(),
            later: AskedLater::default(),
            is_uncut: false,
            expression: None,
            trains,
            said: BTreeSet::new(),
            passed_over: PassedOver::default(),
            notes: Vec::new(),
            data_notes: Vec::new(),
            assumed: Vec::new(),
        }
    }

    /// A reader of a script, which says what could not be taken over of it.
    pub(crate) fn of_script(keys: &'a Keys<'a>, script: &'a Script, tools: [Tool; 2]) -> Self {
        let mut reader = Self {
            script: Some(script),
            ..Self::new(keys, tools)
        };
        for note in &script.notes {
            let concern = Concern::of(tools, &note.key);
            // Several arguments may rest on one assumption.
            if concern.training && !reader.notes.contains(&note.text) {
                reader.note(note.text.clone());
            }
            if concern.costs && !reader.assumed.contains(&note.text) {
                reader.assume(note.text.clone());
            }
        }
        reader
    }

    /// Says that a script of a shell does not say the values of keys, as far as these change the training or what it costs.
    pub(super) fn unsaid(&mut self, unsaid: &Unsaid) {
        let tools = [self.tool, self.trains];
        let line = |concerns: fn(Concern) -> bool| {
            let keys = unsaid.keys.iter().filter(|(key, _)| concerns(Concern::of(tools, key)));
            let all = keys.filter_map(|(key, names)| Some((key, self.keys.seen(key)?, names)));
            let shown = all
                .clone()
                .map(|(key, value, _)| format!("`{key}: {}`", on_one_line(&written(value))));
            let shown: Vec<String> = shown.collect();
            let elsewhere = set_elsewhere(all.flat_map(|(_, _, names)| names), &unsaid.unread);
            let elsewhere = elsewhere.map(|elsewhere| format!("; {elsewhere}")).unwrap_or_default();
            (!shown.is_empty()).then(|| {
                format!(
                    "{}: the script does not say what stands there; write it in its place{elsewhere}",
                    shown.join(", ")
                )
            })
        };
        let of_training = line(|concern| concern.training);
        let of_costs = line(|concern| concern.costs);
        self.notes.extend(of_training);
        self.assumed.extend(of_costs);
    }

    /// The behaviour of the tool that trains, which need not be the one whose words the file has.
    pub(crate) fn behaviour(&self) -> &'static StackBehaviour {
        self.trains.behaviour()
    }

    /// Says what is not as in the file, and what to do.
    pub(crate) fn note(&mut self, message: impl Into<String>) {
        self.notes.push(message.into());
    }

    /// Says what of the rows to train on is not as in the file, and what to do.
    pub(crate) fn data_note(&mut self, message: impl Into<String>) {
        self.data_notes.push(message.into());
    }

    /// Says what is assumed of a training in the tool, where the file does not say it.
    pub(crate) fn assume(&mut self, message: impl Into<String>) {
        self.assumed.push(message.into());
    }

    /// Notes that the file says a setting.
    pub(crate) fn said(&mut self, name: &'static str) {
        self.said.insert(name);
    }

    /// Whether the file says a setting, as far as it was read.
    pub(crate) fn has_said(&self, name: &str) -> bool {
        self.said.contains(name)
    }

    /// The settings whose value stands in the file as it is, under the name that one of `tools` has for it.
    ///
    /// # Errors
    /// A value that the setting cannot have.
    pub(crate) fn values(&mut self, tools: &[Tool]) -> Result<(), StackFileError> {
        let keys = self.keys;
        for row in settings().filter(|row| row.derived_from.is_none() && !OWN_READERS.contains(&row.name)) {
            let mut names = tools.iter().filter_map(|tool| tool.key_of(row.name));
            // Tools do not look at an adapter's keys where they train without one.
            let is_looked_at = self.recipe.adapter.is_some() || !row.field.starts_with("adapter.");
            if let Some(key) = names.find(|key| keys.has(key))
                && is_looked_at
            {
                self.value(row.name, key, keys)?;
            }
        }
        Ok(())
    }

    /// A setting's value as it stands under `key`; nothing where it does not.
    ///
    /// # Errors
    /// A value that the setting cannot have.
    pub(crate) fn value(&mut self, name: &str, key: &str, keys: &Keys<'_>) -> Result<(), StackFileError> {
        let Some((row, found)) = setting(name).zip(keys.raw(key)) else {
            return Ok(());
        };
        let value = value_of(row, key, keys)?;
        let is_set = row.legal.allows(&value) && (row.set)(&mut self.recipe, &value).is_ok();
        if !is_set {
            return Err(keys.wrong(key, found, expected(row)));
        }
        self.said.insert(row.name);
        Ok(())
    }

    /// Takes what is recomputed, by whether layers are and whether their inputs lie in the host's memory. The recipe so
    /// far has what the tool does where the file does not say so.
    pub(crate) fn recomputes(&mut self, is_on: Option<bool>, is_offloaded: Option<bool>) {
        if is_on.or(is_offloaded).is_none() {
            return;
        }
        let usual = self.recipe.gradient_checkpointing;
        let is_on = is_on.unwrap_or(usual != Checkpointing::None);
        let is_offloaded = is_offloaded.unwrap_or(usual == Checkpointing::Offload);
        self.recipe.gradient_checkpointing = match (is_on, is_offloaded) {
            (false, _) => Checkpointing::None,
            (true, false) => Checkpointing::Full,
            (true, true) => Checkpointing::Offload,
        };
        self.said("gradient_checkpointing");
    }

    /// What was read of a file whose tool was told so, with the keys that were not.
    pub(crate) fn finish(mut self, told_by: &'static str) -> Imported {
        let is_on = |key: &str| self.keys.raw(key).is_some_and(|value| !is_off(value));
        let mut left_out: Vec<(&str, &str)> = WITHOUT.into_iter().filter(|(key, _)| is_on(key)).collect();
        // Two keys of one thing are told once.
        left_out.dedup_by_key(|(_, what)| *what);
        let left_out = left_out
            .iter()
            .map(|(key, what)| format!("`{key}` is left out: {what}"));
        self.notes.extend(left_out);
        self.assume_more();
        self.pass_over();
        let PassedOver {
            told,
            uncounted,
            silent,
            unknown,
        } = self.passed_over;
        let of_rows = |key: &&String| key.starts_with("dataset");
        Imported {
            tool: self.trains,
            told_by,
            words: self.tool,
            recipe: self.recipe,
            choices: self.choices,
            later: self.later,
            is_uncut: self.is_uncut,
            expression: self.expression,
            said: self.said,
            told,
            silent,
            uncounted: unknown.iter().filter(|key| !of_rows(key)).cloned().collect(),
            unread: unknown,
            notes: merged(self.notes),
            data_notes: merged(self.data_notes),
            assumed: merged([uncounted, self.assumed].concat()),
        }
    }

    /// Sorts the keys that no reader took. Values that the file itself refers to are no keys of the tool.
    fn pass_over(&mut self) {
        let mut left = self.keys.unread();
        let referred = referred(self.text);
        left.retain(|(key, _)| !referred.contains(key.as_str()));
        for (key, value) in left {
            self.passed_over.take([self.tool, self.trains], &key, value);
        }
    }

    /// Says what a setting of the tool leaves out of the recipe.
    fn assume_more(&mut self) {
        let Some(adapter) = &self.recipe.adapter else { return };
        let has_layers = adapter.layers_to_transform.is_some();
        let has_experts = !adapter.target_parameters.is_empty();
        if has_layers {
            self.assume("adapters are on some of the layers: the figures are those of adapters on all");
        }
        if has_experts {
            self.assume("adapters of the experts' parameters are not counted");
        }
    }

    /// Sorts the keys of a part that no reader took; `prefix` is the part's name with a dot.
    pub(crate) fn part_unread(&mut self, part: &Keys<'_>, prefix: &str) {
        for (key, value) in part.unread() {
            self.passed_over
                .take([self.tool, self.trains], &format!("{prefix}{key}"), value);
        }
    }

    /// Says that a word of the tool is not known, and what is taken in its place.
    pub(crate) fn unknown_word(&mut self, key: &str, word: &str, taken: &str) {
        let message = format!("`{key}: {word}` is not known here: {taken} is taken; change it in the file");
        // A template is written whatever rows there are.
        match key.starts_with("data") || key == "split" {
            true => self.data_note(message),
            false => self.note(message),
        }
    }

    /// Sets the optimizer by the tool's name for it, or by its class.
    pub(crate) fn optimizer(&mut self, key: &str, name: &str) {
        self.optimizer_of(&format!("{key}: {name}"), name);
    }

    /// Sets the optimizer of this name, which the file has in these words. What it does otherwise than the one that is taken is told.
    pub(crate) fn optimizer_of(&mut self, words: &str, name: &str) {
        let Some(called) = optimizer_called(name) else {
            let kind = self.recipe.optimizer.kind;
            self.note(format!(
                "`{words}` is no optimizer that is known here: {kind} is taken; change it in the file"
            ));
            self.assume(format!(
                "`{words}` is no optimizer that is known here: the states of {kind} are counted"
            ));
            return;
        };
        let kind = called.kind;
        self.recipe.optimizer.kind = kind;
        self.said("optimizer");
        let Some(differs) = called.differs else { return };
        let what = differs.what;
        self.choices.optimizer = Some(differs.keeps);
        self.note(format!(
            "`{words}` {what}: {kind} is taken in its place; change it in the file"
        ));
        self.assume(format!(
            "`{words}` {what}: its states are counted as {} for each trained value",
            differs.kept()
        ));
    }

    /// Sets the schedule.
    pub(crate) fn schedule(&mut self, key: &str, name: &str, found: Option<ScheduleKind>) {
        match found {
            Some(kind) => {
                self.recipe.schedule.kind = kind;
                self.said("schedule");
            }
            None => self.unknown_word(key, name, self.recipe.schedule.kind.name()),
        }
    }
}

/// The value under a key, as the kind that the setting has.
fn value_of(row: &SettingRow, key: &str, keys: &Keys<'_>) -> Result<ParamValue, StackFileError> {
    let none = || ParamValue::from("none");
    Ok(match row.legal {
        Legal::Int { .. } => keys
            .count(key)?
            .map_or_else(none, |count| ParamValue::Int(count as i64)),
        Legal::Float(_) => keys.number(key)?.map_or_else(none, ParamValue::Float),
        Legal::FloatOrNone(_) => match keys.raw(key) {
            Some(Value::String(text)) if text == "none" || text == "None" => none(),
            _ => keys.number(key)?.map_or_else(none, ParamValue::Float),
        },
        Legal::Bool => keys.flag(key)?.map_or_else(none, ParamValue::Bool),
        Legal::Choice(_) | Legal::Checkpointing | Legal::PrecisionSchedule | Legal::Targets => {
            keys.text(key)?.map_or_else(none, ParamValue::from)
        }
    })
}

fn expected(row: &SettingRow) -> &'static str {
    match row.legal {
        Legal::Int { .. } => "write a whole number that is smaller",
        Legal::Float(range) | Legal::FloatOrNone(range) => match (range.low_included, range.high.is_finite()) {
            (_, true) => "write a number of 0 or more, and below 1",
            (true, false) => "write a number of 0 or more",
            (false, false) => "write a number above 0",
        },
        Legal::Bool => "write true or false",
        Legal::Choice(_) | Legal::Checkpointing | Legal::PrecisionSchedule | Legal::Targets => {
            "write a name that the tool knows"
        }
    }
}
