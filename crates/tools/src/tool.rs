//! [`Tool`]: which tools there are. What is known of them stands in `table.rs`.

/// Tools, and the list of all of them.
macro_rules! tools {
    ($($(#[$attribute:meta])* $kind:ident,)*) => {
        /// A program that trains from a settings file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Tool {
            $($(#[$attribute])* $kind,)*
        }

        impl Tool {
            /// All tools in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$kind),*];
        }
    };
}

tools! {
    /// transformers' Trainer with PEFT's adapters.
    Peft,
    /// TRL's SFTTrainer and `trl sft`.
    Trl,
    Axolotl,
    LlamaFactory,
    Torchtune,
    /// unsloth, with its kernels.
    Unsloth,
}
