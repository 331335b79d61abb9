//! Other tools, and what they call a setting.

/// A tool with settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tool {
    /// PEFT's `LoraConfig`.
    Peft,
    Trl,
    Axolotl,
    LlamaFactory,
    Torchtune,
    Unsloth,
}

impl Tool {
    /// All tools.
    pub const ALL: [Self; 6] = [
        Self::Peft,
        Self::Trl,
        Self::Axolotl,
        Self::LlamaFactory,
        Self::Torchtune,
        Self::Unsloth,
    ];
}

/// A name that a setting has elsewhere; suggested where someone writes it in a study file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alias {
    pub name: &'static str,
    /// The tools whose files have this key for it. Without any it is only what people say.
    pub tools: &'static [Tool],
}

/// A row's way of writing an [`Alias`].
pub(super) const fn name(name: &'static str, tools: &'static [Tool]) -> Alias {
    Alias { name, tools }
}
