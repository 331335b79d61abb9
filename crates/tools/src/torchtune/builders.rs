//! Functions of torchtune (0.6) that build data sets: what a row is, and what each reads where the config names nothing else.

use peft_tune_core::recipe::DataFormat;

/// A function that builds a data set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Builder {
    /// Name behind the last dot of `_component_`.
    pub name: &'static str,
    pub format: DataFormat,
    /// Names that the format has for columns, with those of the function.
    pub columns: &'static [(&'static str, &'static str)],
    /// Data set of the hub that is read where the config has no `source`.
    pub source: Option<&'static str>,
    pub configuration: Option<&'static str>,
    /// Folder of that data set whose rows alone are read.
    pub folder: Option<&'static str>,
    /// Prompts are learnt too where the config does not say.
    pub learns_inputs: bool,
}

const PLAIN: Builder = Builder {
    name: "",
    format: DataFormat::PromptCompletion,
    columns: &[("prompt", "input"), ("completion", "output")],
    source: None,
    configuration: None,
    folder: None,
    learns_inputs: false,
};

const BUILDERS: &[Builder] = &[
    Builder {
        name: "instruct_dataset",
        ..PLAIN
    },
    Builder {
        name: "grammar_dataset",
        source: Some("liweili/c4_200m"),
        ..PLAIN
    },
    Builder {
        name: "samsum_dataset",
        columns: &[("prompt", "dialogue"), ("completion", "summary")],
        source: Some("Samsung/samsum"),
        ..PLAIN
    },
    Builder {
        name: "alpaca_dataset",
        format: DataFormat::Alpaca,
        columns: &[],
        source: Some("tatsu-lab/alpaca"),
        learns_inputs: true,
        ..PLAIN
    },
    Builder {
        name: "alpaca_cleaned_dataset",
        format: DataFormat::Alpaca,
        columns: &[],
        source: Some("yahma/alpaca-cleaned"),
        learns_inputs: true,
        ..PLAIN
    },
    Builder {
        name: "chat_dataset",
        format: DataFormat::Messages,
        columns: &[],
        ..PLAIN
    },
    Builder {
        name: "slimorca_dataset",
        format: DataFormat::Sharegpt,
        columns: &[],
        source: Some("Open-Orca/SlimOrca-Dedup"),
        ..PLAIN
    },
    Builder {
        name: "text_completion_dataset",
        format: DataFormat::Text,
        columns: &[],
        ..PLAIN
    },
    Builder {
        name: "cnn_dailymail_articles_dataset",
        format: DataFormat::Text,
        columns: &[("text", "article")],
        source: Some("ccdv/cnn_dailymail"),
        configuration: Some("3.0.0"),
        ..PLAIN
    },
    Builder {
        name: "wikitext_dataset",
        format: DataFormat::Text,
        columns: &[("text", "page")],
        source: Some("EleutherAI/wikitext_document_level"),
        configuration: Some("wikitext-103-v1"),
        ..PLAIN
    },
    Builder {
        name: "preference_dataset",
        format: DataFormat::Preference,
        columns: &[],
        ..PLAIN
    },
    Builder {
        name: "stack_exchange_paired_dataset",
        format: DataFormat::Preference,
        columns: &[
            ("prompt", "question"),
            ("chosen", "response_j"),
            ("rejected", "response_k"),
        ],
        source: Some("lvwerra/stack-exchange-paired"),
        folder: Some("data/rl"),
        ..PLAIN
    },
    Builder {
        name: "hh_rlhf_helpful_dataset",
        format: DataFormat::Preference,
        columns: &[],
        source: Some("RLHFlow/HH-RLHF-Helpful-standard"),
        ..PLAIN
    },
    // The one of the module that is written beside a config.
    Builder {
        name: "token_rows",
        format: DataFormat::Tokenized,
        columns: &[],
        ..PLAIN
    },
];

impl Builder {
    /// The function that a component names.
    pub(super) fn of(component: &str) -> Option<&'static Self> {
        let name = component.rsplit('.').next().unwrap_or_default();
        BUILDERS.iter().find(|builder| builder.name == name)
    }
}
