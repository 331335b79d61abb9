//! Every format from file to targets.

use std::collections::BTreeMap;

use peft_tune_core::recipe::{DataFormat, DataSettings, HeldOut, LongRows, LossOn, TemplateTargets};
use peft_tune_engine::data::{DataWarning, Document, DocumentSet, PreparedData};
use peft_tune_kernels::ops::loss_head::IGNORE;

use super::{all_texts, data_file, prepare, settings, test_file, texts, tokenizer};

/// The twelve questions of the fixtures: question with context, answer.
fn questions() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(data_file("alpaca.json")).unwrap();
    let rows: Vec<BTreeMap<String, String>> = serde_json::from_str(&text).unwrap();
    let question = |row: &BTreeMap<String, String>| match row["input"].as_str() {
        "" => row["instruction"].clone(),
        input => format!("{}\n{input}", row["instruction"]),
    };
    rows.iter().map(|row| (question(row), row["output"].clone())).collect()
}

fn sorted(mut rows: Vec<(String, String)>) -> Vec<(String, String)> {
    rows.sort();
    rows
}

#[test]
fn alpaca_rows_become_chats_where_there_is_a_template() {
    let tokenizer = tokenizer("tokenizer");
    let expected = questions().into_iter().map(|(question, answer)| {
        let closed = format!("{answer}<|im_end|>\n");
        (
            format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{closed}"),
            closed,
        )
    });
    let expected = sorted(expected.collect());
    for name in ["alpaca.json", "alpaca.csv", "alpaca.parquet"] {
        let prepared = prepare(&settings(name), &tokenizer, 512).unwrap();
        assert_eq!(all_texts(&prepared, &tokenizer), expected, "{name}");
        assert_eq!(prepared.warnings(), [], "{name}");
    }
}

#[test]
fn alpaca_rows_become_the_classic_prompt_where_there_is_none() {
    let tokenizer = tokenizer("tokenizer_with_bos");
    let prepared = prepare(&settings("alpaca.json"), &tokenizer, 2048).unwrap();
    let all = all_texts(&prepared, &tokenizer);
    let (text, target) = all.iter().find(|(text, _)| text.contains("Name the knot")).unwrap();
    let expected = "<s> Below is an instruction that describes a task, paired with an input that provides further \
                    context. Write a response that appropriately completes the request.\n\n### Instruction:\nName the \
                    knot.\n\n### Input:\nIt makes a loop that neither tightens nor comes undone.\n\n### \
                    Response:\nThe bowline.</s>";
    assert_eq!(text.replace("<s> ", "<s>"), expected.replace("<s> ", "<s>"));
    assert_eq!(target, "The bowline.</s>");
}

#[test]
fn chats_are_the_same_in_every_layout_and_all_answers_are_targets() {
    let tokenizer = tokenizer("tokenizer");
    let questions = questions();
    let expected = (0..questions.len()).map(|index| {
        let turns = [&questions[index], &questions[(index + 1) % questions.len()]];
        let system = "<|im_start|>system\nYou live by the sea.<|im_end|>\n";
        let mut text = if index % 2 == 0 {
            system.to_owned()
        } else {
            String::new()
        };
        let mut targets = String::new();
        for (question, answer) in turns {
            let closed = format!("{answer}<|im_end|>\n");
            text += &format!("<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{closed}");
            targets += &closed;
        }
        (text, targets)
    });
    let expected = sorted(expected.collect());
    for name in ["messages.jsonl", "messages.parquet", "sharegpt.jsonl"] {
        let prepared = prepare(&settings(name), &tokenizer, 512).unwrap();
        assert_eq!(all_texts(&prepared, &tokenizer), expected, "{name}");
    }
}

#[test]
fn prompt_and_completion_renamed_or_not() {
    let tokenizer = tokenizer("tokenizer");
    let joined = |space: &str| {
        let rows = questions().into_iter().map(|(question, answer)| {
            let completion = format!("{space}{answer}<|im_end|>");
            (format!("{question}{completion}"), completion)
        });
        sorted(rows.collect())
    };
    let prepared = prepare(&settings("prompt_completion.jsonl"), &tokenizer, 512).unwrap();
    assert_eq!(all_texts(&prepared, &tokenizer), joined(" "));

    let columns = [("prompt", "q"), ("completion", "a")].map(|(key, name)| (key.to_owned(), name.to_owned()));
    let settings = DataSettings {
        columns: columns.into(),
        ..settings("renamed.jsonl")
    };
    let prepared = prepare(&settings, &tokenizer, 512).unwrap();
    assert_eq!(all_texts(&prepared, &tokenizer), joined(""));
}

#[test]
fn loss_on_all_makes_every_token_a_target() {
    let tokenizer = tokenizer("tokenizer");
    for name in ["prompt_completion.jsonl", "messages.jsonl", "alpaca.csv"] {
        let settings = DataSettings {
            loss_on: LossOn::All,
            ..settings(name)
        };
        let prepared = prepare(&settings, &tokenizer, 512).unwrap();
        assert!(
            all_texts(&prepared, &tokenizer)
                .iter()
                .all(|(text, targets)| text == targets),
            "{name}"
        );
    }
}

#[test]
fn of_what_a_template_writes_the_ends_of_turns_alone_may_be_learnt() {
    let tokenizer = tokenizer("tokenizer");
    for loss_on in [LossOn::Completions, LossOn::All] {
        let settings = DataSettings {
            loss_on,
            template_targets: TemplateTargets::StopTokens,
            ..settings("alpaca.json")
        };
        let prepared = prepare(&settings, &tokenizer, 512).unwrap();
        let expected = questions().into_iter().map(|(question, answer)| {
            let targets = match loss_on {
                LossOn::Completions => format!("{answer}<|im_end|>"),
                LossOn::All => format!("{question}<|im_end|>{answer}<|im_end|>"),
            };
            let answer = format!("<|im_start|>assistant\n{answer}<|im_end|>\n");
            (format!("<|im_start|>user\n{question}<|im_end|>\n{answer}"), targets)
        });
        assert_eq!(
            all_texts(&prepared, &tokenizer),
            sorted(expected.collect()),
            "{loss_on:?}"
        );
        assert_eq!(prepared.warnings(), [], "{loss_on:?}");
    }
    // Nothing but chats has a template.
    let prepared_of = |template_targets| {
        let settings = DataSettings {
            template_targets,
            ..settings("prompt_completion.jsonl")
        };
        all_texts(&prepare(&settings, &tokenizer, 512).unwrap(), &tokenizer)
    };
    assert_eq!(
        prepared_of(TemplateTargets::StopTokens),
        prepared_of(TemplateTargets::All)
    );
}

#[test]
fn text_rows_end_with_the_end_of_the_document() {
    for (name, start, end) in [("tokenizer", "", "<|im_end|>"), ("tokenizer_with_bos", "<s> ", "</s>")] {
        let tokenizer = tokenizer(name);
        let prepared = prepare(&settings("text.jsonl"), &tokenizer, 512).unwrap();
        let expected = questions()
            .into_iter()
            .map(|(question, answer)| format!("{start}{question}\n{answer}{end}"));
        let mut expected: Vec<String> = expected.collect();
        expected.sort();
        let found: Vec<String> = all_texts(&prepared, &tokenizer)
            .into_iter()
            .map(|(text, _)| text)
            .collect();
        let plain = |texts: Vec<String>| texts.into_iter().map(|t| t.replace("<s> ", "<s>")).collect::<Vec<_>>();
        assert_eq!(plain(found), plain(expected), "{name}");
    }
}

#[test]
fn plain_text_is_split_into_rows_and_nothing_is_lost() {
    let tokenizer = tokenizer("tokenizer");
    let text = std::fs::read_to_string(data_file("harbour.txt")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let held_out = folder.path().join("held_out.txt");
    std::fs::write(&held_out, "Something else.").unwrap();
    let settings = DataSettings {
        held_out: peft_tune_core::recipe::HeldOut::File(held_out),
        ..settings("harbour.txt")
    };
    let prepared = prepare(&settings, &tokenizer, 64).unwrap();
    let rows = texts(prepared.train(), &tokenizer);
    assert!(rows.len() > 10);
    assert_eq!(prepared.train().statistics().longest, 64);
    let joined: String = rows.into_iter().map(|(text, _)| text).collect();
    assert_eq!(joined, text + "<|im_end|>");
}

#[test]
fn tokenised_rows_keep_their_labels_and_lose_their_padding() {
    let tokenizer = tokenizer("tokenizer");
    let expected: Vec<(String, String)> = questions()
        .into_iter()
        .map(|(question, answer)| (format!("{question} {answer}"), format!(" {answer}")))
        .collect();
    for name in ["tokenized.jsonl", "tokenized.parquet"] {
        let prepared = prepare(&settings(name), &tokenizer, 512).unwrap();
        assert_eq!(all_texts(&prepared, &tokenizer), sorted(expected.clone()), "{name}");
    }
}

#[test]
fn answers_are_told_whatever_a_template_does_to_them() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let row = r#"{"messages": [{"role": "user", "content": "Six?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "<think>\nso\n</think>\n\nQuite."}]}"#
        .replace('\n', " ");
    std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
    let cases = [
        // Drops the reasoning of earlier turns.
        (
            "thinking.jinja",
            "Yes.<|im_end|>\n<think>\nso\n</think>\n\nQuite.<|im_end|>\n",
        ),
        // Puts the end of the document behind whatever it renders.
        (
            "ends_with_eos.jinja",
            "<think>\nhm\n</think>\n\nYes.<|end|>\n<think>\nso\n</think>\n\nQuite.<|end|>\n<|im_end|>",
        ),
        // Begins the reasoning in the prompt, otherwise than in the chat.
        (
            "opens_reasoning.jinja",
            "</think>\n\nYes.<|im_end|>\n</think>\n\nQuite.<|im_end|>\n",
        ),
        // Has no prompt for an answer.
        (
            "instructions.jinja",
            " <think>\nhm\n</think>\n\nYes.<|im_end|> <think>\nso\n</think>\n\nQuite.<|im_end|>",
        ),
    ];
    for (name, expected) in cases {
        let settings = DataSettings {
            train: vec![path.clone()].into(),
            chat_template: Some(test_file("golden/chat/templates").join(name)),
            ..settings("messages.jsonl")
        };
        let prepared = prepare(&settings, &tokenizer, 512).unwrap();
        assert_eq!(texts(prepared.train(), &tokenizer)[0].1, expected, "{name}");
        let drops = ["thinking.jinja", "opens_reasoning.jinja"].contains(&name);
        let warnings = prepared.warnings().iter().map(ToString::to_string).collect::<Vec<_>>();
        let is_told = |warning: &String| warning.contains("reasoning that the chat template does not write");
        assert_eq!(warnings.iter().any(is_told), drops, "{name}");
    }
}

#[test]
fn a_template_that_asks_for_the_day_is_told_one_and_a_warning_says_so() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("dated.jinja");
    let text = "{{ strftime_now('%d %b %Y') }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::fs::write(&template, text).unwrap();
    let settings = DataSettings {
        chat_template: Some(template),
        ..settings("messages.jsonl")
    };
    let prepared = prepare(&settings, &tokenizer, 512).unwrap();
    assert!(texts(prepared.train(), &tokenizer)[0].0.starts_with("26 Jul 2024"));
    let warnings = prepared.warnings().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("told 2024-07-26 on any day")),
        "{warnings:?}"
    );
}

#[test]
fn only_weighted_answers_and_completions_are_targets() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let weighted = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]}"#;
    let lists = r#"{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]}"#;
    for row in [weighted, lists].map(|row| row.replace('\n', " ")) {
        std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
        let settings = DataSettings {
            train: vec![path.clone()].into(),
            ..settings("messages.jsonl")
        };
        let prepared = prepare(&settings, &tokenizer, 512).unwrap();
        assert_eq!(texts(prepared.train(), &tokenizer)[0].1, "d<|im_end|>\n");
    }
}

#[test]
fn long_rows_are_cut_and_those_without_targets_left_out() {
    let tokenizer = tokenizer("tokenizer");
    let whole = prepare(&settings("prompt_completion.jsonl"), &tokenizer, 512).unwrap();
    let longest = whole.train().statistics().longest as usize;
    let cut = whole.at_length(longest / 2).unwrap();
    let statistics = cut.train().statistics();
    assert!(statistics.cut_rows > 0 && statistics.longest as usize <= longest / 2);
    assert_eq!(statistics.rows, statistics.documents + statistics.dropped_rows);
    assert!(!cut.warnings().is_empty());
    assert!(whole.at_length(2).is_err());
    let again = prepare(&settings("prompt_completion.jsonl"), &tokenizer, longest / 2).unwrap();
    let documents = |prepared: &peft_tune_engine::data::PreparedData| -> Vec<Document> {
        let train = prepared.train();
        (0..train.len())
            .map(|index| train.document(index).to_document())
            .collect()
    };
    assert_eq!(documents(&again), documents(&cut));
    assert!(
        documents(&cut)
            .iter()
            .all(|d| d.labels.iter().skip(1).any(|label| *label != IGNORE))
    );
}

#[test]
fn long_rows_are_left_out_of_both_sets_at_their_own_lengths() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let (path, held_out) = (folder.path().join("rows.jsonl"), folder.path().join("held_out.jsonl"));
    let row = |tokens: usize| format!("{{\"input_ids\": {:?}}}\n", vec![5; tokens]);
    std::fs::write(&path, [3, 6, 4, 5].map(row).concat()).unwrap();
    std::fs::write(&held_out, [5, 2, 7].map(row).concat()).unwrap();
    let settings = DataSettings {
        train: vec![path].into(),
        held_out: HeldOut::File(held_out),
        long_rows: LongRows::Drop,
        ..DataSettings::default()
    };
    let tokens = |set: &DocumentSet| -> Vec<usize> { (0..set.len()).map(|index| set.tokens(index)).collect() };
    let both = |prepared: &PreparedData| (tokens(prepared.train()), tokens(prepared.held_out()));
    let prepared = prepare(&settings, &tokenizer, 4).unwrap();
    assert_eq!(both(&prepared), (vec![3, 4], vec![2]));
    let told: Vec<String> = prepared.warnings().iter().map(ToString::to_string).collect();
    let warning = |counts: &str| {
        format!(
            "{counts} rows are left out: they are longer than 4 tokens (`long_rows: drop`); raise `sequence_length` to \
             use them"
        )
    };
    assert_eq!(told, ["2 of 4 training", "2 of 3 held-out"].map(warning));
    let summary = prepared.summary();
    assert_eq!((summary.training.left_out, summary.training.cut), (2, 0));
    assert_eq!((summary.held_out.left_out, summary.held_out.cut), (2, 0));
    assert_eq!(both(&prepared.at_length(6).unwrap()), (vec![3, 6, 4, 5], vec![5, 2]));
    let error = prepared.at_length(2).unwrap_err().to_string();
    assert!(
        error.contains("4 left out: they are longer (`data.long_rows: drop`)"),
        "{error}"
    );
    // Held-out rows have a length of their own where all trials are compared.
    let own = DataSettings {
        held_out_length: Some(5),
        ..settings.clone()
    };
    let prepared = prepare(&own, &tokenizer, 4).unwrap();
    assert_eq!(both(&prepared), (vec![3, 4], vec![5, 2]));
    // What is cut is read from the same tokens.
    let cache = tempfile::tempdir().unwrap();
    let cached = |long_rows| {
        let settings = DataSettings {
            long_rows,
            ..settings.clone()
        };
        PreparedData::prepare(&settings, &tokenizer, 4, 0, Some(cache.path())).unwrap()
    };
    assert_eq!(both(&cached(LongRows::Drop)), (vec![3, 4], vec![2]));
    assert_eq!(both(&cached(LongRows::Cut)), (vec![3, 4, 4, 4], vec![4, 2, 4]));
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
}

#[test]
fn rows_without_a_target_are_told_from_those_whose_targets_are_cut_away() {
    let tokenizer = tokenizer("tokenizer");
    let folder = tempfile::tempdir().unwrap();
    let (path, held_out) = (folder.path().join("rows.jsonl"), folder.path().join("held_out.jsonl"));
    let learnt = "{\"input_ids\": [5, 6, 7]}\n";
    let untargeted = "{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, -100]}\n";
    let late = "{\"input_ids\": [5, 6, 7, 8, 9], \"labels\": [-100, -100, -100, -100, 9]}\n";
    std::fs::write(&held_out, learnt).unwrap();
    std::fs::write(&path, [untargeted, learnt, late].concat()).unwrap();
    let settings = DataSettings {
        train: vec![path].into(),
        held_out: HeldOut::File(held_out),
        ..DataSettings::default()
    };
    let prepared = prepare(&settings, &tokenizer, 4).unwrap();
    assert_eq!(prepared.train().len(), 1);
    let warnings = prepared.warnings();
    assert!(
        matches!(
            warnings[..],
            [
                DataWarning::NoTarget { rows: 1, of: 3, .. },
                DataWarning::Dropped { rows: 1, of: 3, .. }
            ]
        ),
        "{warnings:?}"
    );
    let said = warnings[0].to_string();
    assert!(
        said.contains("no target at all") && !said.contains("sequence_length"),
        "{said}"
    );
    assert_eq!(prepared.at_length(5).unwrap().warnings(), warnings[..1]);
}

#[test]
fn a_format_can_be_named_and_rows_limited() {
    let tokenizer = tokenizer("tokenizer");
    let settings = DataSettings {
        format: DataFormat::Messages,
        max_rows: Some(4),
        ..settings("messages.jsonl")
    };
    let prepared = prepare(&settings, &tokenizer, 512).unwrap();
    assert_eq!((prepared.train().len(), prepared.held_out().len()), (2, 2));
}
