//! The base model's tokenizer: byte-level BPE, trained on the base corpus, with the tokens of ChatML.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::json;
use tokenizers::decoders::byte_level::ByteLevel as Decoder;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer, TokenizerImpl};

use super::texts::{BaseCorpus, Document, Message};

/// Tokens in all, special ones included.
pub(crate) const VOCABULARY: usize = 1024;
/// Longest input of the model.
pub(crate) const MAX_POSITIONS: usize = 512;
/// Ends a document; id 0.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";
/// Begins a message; id 1.
pub(crate) const MESSAGE_START: &str = "<|im_start|>";
/// Ends a message; id 2.
pub(crate) const MESSAGE_END: &str = "<|im_end|>";

/// Documents that the merges are learned from.
const SAMPLE: usize = 20_000;

/// ChatML, as the base model reads it in its corpus.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

type ByteLevelBpe =
    TokenizerImpl<BPE, tokenizers::NormalizerWrapper, ByteLevel, tokenizers::PostProcessorWrapper, Decoder>;

/// Learns the merges from the first documents of the base corpus.
pub(crate) fn train() -> Result<Tokenizer> {
    let special = [END_OF_TEXT, MESSAGE_START, MESSAGE_END];
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(VOCABULARY)
        .show_progress(false)
        .special_tokens(special.map(|token| AddedToken::from(token, true)).to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<_>>())
        .build();
    let mut tokenizer = ByteLevelBpe::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(ByteLevel::new(false, true, true)))
        .with_decoder(Some(Decoder::default()));
    let sample = BaseCorpus::training().take(SAMPLE).flat_map(|document| match document {
        Document::Text(text) => vec![text],
        Document::Chat(messages) => messages
            .iter()
            .map(|(role, content)| format!("{role}\n{content}"))
            .collect(),
    });
    tokenizer.train(&mut trainer, sample).map_err(|error| anyhow!(error))?;
    let text = serde_json::to_string(&tokenizer)?;
    text.parse().map_err(|error| anyhow!("{error}"))
}

/// Writes `tokenizer.json` and `tokenizer_config.json`.
pub(crate) fn write(tokenizer: &Tokenizer, directory: &Path) -> Result<()> {
    let path = directory.join("tokenizer.json");
    tokenizer.save(path, false).map_err(|error| anyhow!(error))?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "bos_token": null,
        "eos_token": MESSAGE_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    std::fs::write(
        directory.join("tokenizer_config.json"),
        serde_json::to_string_pretty(&config)? + "\n",
    )?;
    Ok(())
}

/// Token ids of a document of the base corpus, which ends in [`END_OF_TEXT`].
pub(crate) fn encode(tokenizer: &Tokenizer, document: &Document) -> Result<Vec<u32>> {
    let text = match document {
        Document::Text(text) => text.clone(),
        Document::Chat(messages) => messages.iter().map(chat_ml).collect(),
    };
    let encoding = tokenizer.encode_fast(text + END_OF_TEXT, false);
    Ok(encoding.map_err(|error| anyhow!(error))?.get_ids().to_vec())
}

fn chat_ml((role, content): &Message) -> String {
    format!("{MESSAGE_START}{role}\n{content}{MESSAGE_END}\n")
}
