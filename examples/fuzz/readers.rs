//! Every reader of files and texts from elsewhere, each with real inputs to begin with, and what mutates them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use peft_tune::space::{ReadOptions, RecipeFile, StudyFile};
use peft_tune::store::Store;
use peft_tune::tools::Tool;
use peft_tune::tools::import;
use peft_tune::worker::{Message, Request};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::ModelShape;
use peft_tune_core::recipe::{DataSettings, HeldOut, Precision};
use peft_tune_engine::BaseModel;
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::{HubSettings, ModelFiles, TokenizerFiles};
use peft_tune_engine::profile::read_torch_trace;
use peft_tune_engine::tokenizer::{ChatTemplate, GenerationPrompt, SpecialTokens, Specials, Tokenizer};

/// Folder of the data files that tests read.
const DATA: &str = "tests/fixtures/data";

/// Folder of the scripts and notebooks that tests read.
const SCRIPTS: &str = "tests/fixtures/scripts";

/// A reader: its name, what it begins with, and what it does with bytes.
pub(super) struct Reader {
    pub name: &'static str,
    pub inputs: fn(&Corpus) -> Vec<Vec<u8>>,
    pub read: fn(&Corpus, &[u8]),
}

/// All readers.
pub(super) const READERS: [Reader; 16] = [
    Reader {
        name: "space",
        inputs: |corpus| corpus.files("search_spaces", "yaml"),
        read: space,
    },
    Reader {
        name: "recipe",
        inputs: |_| vec![RECIPE.as_bytes().to_vec()],
        read: recipe,
    },
    Reader {
        name: "stacks",
        inputs: |_| STACKS.iter().map(|text| text.as_bytes().to_vec()).collect(),
        read: settings_of_stacks,
    },
    Reader {
        name: "scripts",
        inputs: |corpus| [corpus.files(SCRIPTS, "py"), corpus.files(SCRIPTS, "ipynb")].concat(),
        read: scripts,
    },
    Reader {
        name: "config",
        inputs: |corpus| vec![corpus.model("config.json")],
        read: config,
    },
    Reader {
        name: "safetensors",
        inputs: |corpus| vec![corpus.model("model.safetensors")],
        read: safetensors,
    },
    Reader {
        name: "tokenizer",
        inputs: |corpus| vec![corpus.model("tokenizer.json")],
        read: tokenizer,
    },
    Reader {
        name: "template",
        inputs: |_| TEMPLATES.iter().map(|text| text.as_bytes().to_vec()).collect(),
        read: template,
    },
    Reader {
        name: "jsonl",
        inputs: |corpus| corpus.files(DATA, "jsonl"),
        read: |corpus, bytes| data(corpus, "a.jsonl", bytes),
    },
    Reader {
        name: "csv",
        inputs: |corpus| corpus.files(DATA, "csv"),
        read: |corpus, bytes| data(corpus, "a.csv", bytes),
    },
    Reader {
        name: "parquet",
        inputs: |corpus| corpus.files(DATA, "parquet"),
        read: |corpus, bytes| data(corpus, "a.parquet", bytes),
    },
    Reader {
        name: "text",
        inputs: |corpus| corpus.files(DATA, "txt"),
        read: |corpus, bytes| data(corpus, "a.txt", bytes),
    },
    Reader {
        name: "protocol",
        inputs: |_| PROTOCOL.iter().map(|text| text.as_bytes().to_vec()).collect(),
        read: protocol,
    },
    Reader {
        name: "database",
        inputs: |corpus| vec![corpus.database.clone()],
        read: database,
    },
    Reader {
        name: "url",
        inputs: |_| NAMES.iter().map(|text| text.as_bytes().to_vec()).collect(),
        read: url,
    },
    Reader {
        name: "trace",
        inputs: |_| TRACES.iter().map(|text| text.as_bytes().to_vec()).collect(),
        read: |corpus, bytes| drop(read_torch_trace(&corpus.put("trace.json", bytes))),
    },
];

/// Traces as PyTorch's profiler writes them, of a processor and of a GPU.
const TRACES: [&str; 2] = [
    r#"{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 7, "tid": 7, "ts": 10.5, "dur": 900.0, "args": {"External id": 1}},
{"ph": "X", "cat": "cpu_op", "name": "aten::embedding", "pid": 7, "tid": 7, "ts": 20, "dur": 9, "args": {"External id": 2,
 "Input type": ["float", "long int"], "Input Dims": [[50, 16], [2, 8]]}},
{"ph": "X", "cat": "cpu_op", "name": "aten::cat", "pid": 7, "tid": 7, "ts": 30, "dur": 9, "args": {"Input Dims": [[[8], [8]], []]}},
{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": 31,
 "args": {"Total Allocated": 128, "Device Id": -1, "Device Type": 0}}], "traceName": "t"}"#,
    r#"[{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 1, "dur": 5, "args": {"External id": 3}},
{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 9, "dur": 5, "args": {"External id": 3, "device": 0}}]"#,
];

/// Real inputs, and a folder to write to.
pub(super) struct Corpus {
    root: PathBuf,
    folder: PathBuf,
    database: Vec<u8>,
    tokenizer: OnceLock<Tokenizer>,
}

impl Corpus {
    /// The inputs of the repository at `root`; files are written to `folder`.
    pub(super) fn new(root: &Path, folder: &Path, database: Vec<u8>) -> Self {
        Self {
            root: root.to_owned(),
            folder: folder.to_owned(),
            database,
            tokenizer: OnceLock::new(),
        }
    }

    fn model(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.base().join(name)).expect("the quickstart's model lies in the repository")
    }

    fn base(&self) -> PathBuf {
        self.root.join("search_spaces/quickstart/base")
    }

    /// Contents of the files of a folder whose names end so.
    fn files(&self, folder: &str, ending: &str) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.root.join(folder))
            .into_iter()
            .flatten()
            .flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == ending));
        paths.sort();
        paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
    }

    /// Writes bytes to a file of this name.
    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, bytes).expect("the folder can be written");
        path
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.tokenizer.get_or_init(|| {
            let files = ModelFiles::resolve(&self.base().to_string_lossy()).expect("a model");
            Tokenizer::open(&files.tokenizer).expect("a tokenizer")
        })
    }
}

fn space(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let options = ReadOptions { check_files: false };
    match StudyFile::parse(Path::new("space.yaml"), &text, options) {
        Ok(study) => drop(study.problem()),
        Err(error) => drop(error.rendered(false)),
    }
}

fn recipe(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let options = ReadOptions { check_files: false };
    if let Err(error) = RecipeFile::parse(Path::new("recipe.yaml"), &text, options) {
        drop(error.rendered(false));
    }
}

fn settings_of_stacks(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    settings(Path::new("settings.yaml"), &text);
}

fn scripts(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for file in ["train.py", "train.ipynb"] {
        settings(Path::new(file), &text);
    }
}

fn settings(path: &Path, text: &str) {
    if let Ok(imported) = import::parse_recipe(path, text, Some(Tool::Trl)) {
        let _ = imported.params();
        let _ = imported.setting().tokens();
    }
}

fn config(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(value) = serde_json::from_str(&text)
        && let Ok(shape) = ModelShape::from_json("config.json", &value)
    {
        let _ = shape.parameters();
    }
    if let Ok(architecture) = Architecture::from_json(Path::new("config.json"), &text) {
        // What every command asks of a model; a config may claim any size.
        let _ = architecture.parameter_count().total();
    }
}

fn safetensors(corpus: &Corpus, bytes: &[u8]) {
    let folder = corpus.folder.join("model");
    let _ = std::fs::create_dir_all(&folder);
    let _ = std::fs::write(folder.join("config.json"), corpus.model("config.json"));
    let _ = std::fs::write(folder.join("model.safetensors"), bytes);
    drop(BaseModel::load(&folder, Precision::Fp32, &candle_core::Device::Cpu));
}

fn tokenizer(corpus: &Corpus, bytes: &[u8]) {
    let files = TokenizerFiles {
        tokenizer: corpus.put("tokenizer.json", bytes),
        config: None,
        special_tokens_map: None,
        chat_template: None,
        generation_config: None,
        model_config: None,
    };
    if let Ok(tokenizer) = Tokenizer::open(&files)
        && let Ok(encoded) = tokenizer.encode("The quick brown fox, 12 é.\n", Specials::Add)
    {
        drop(tokenizer.decode(&encoded.ids, false));
    }
}

fn template(_: &Corpus, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let special = SpecialTokens::default();
    let Ok(template) = ChatTemplate::new(&[("default".to_owned(), text)], &special, "fuzz") else {
        return;
    };
    let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let messages = [message("user", "What is 1 + 1?"), message("assistant", "2")];
    if let Ok(chat) = template.conversation(&messages, None) {
        drop(chat.render(2, GenerationPrompt::Omit));
    }
}

fn data(corpus: &Corpus, name: &str, bytes: &[u8]) {
    let settings = DataSettings {
        train: vec![corpus.put(name, bytes)].into(),
        held_out: HeldOut::Fraction(0.5),
        ..DataSettings::default()
    };
    drop(PreparedData::prepare(&settings, corpus.tokenizer(), 64, 1, None));
}

fn protocol(_: &Corpus, bytes: &[u8]) {
    if let Ok(Message::Trial(event)) = serde_json::from_slice(bytes) {
        event.is_countable();
    }
    drop(serde_json::from_slice::<Request>(bytes));
}

fn database(corpus: &Corpus, bytes: &[u8]) {
    let path = corpus.put("fuzz.db", bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Ok(store) = Store::open_read_only(&path).await else {
            return;
        };
        for study in store.studies().all().await.unwrap_or_default() {
            drop(store.history().confirmed_trials(study.id).await);
            drop(store.definitions().search_space(study.id).await);
            drop(store.history().runs(study.id).await);
            drop(store.inheritance().variants(study.id).await);
            drop(store.baselines().of(study.id).await);
            drop(store.reports().curves(study.id).await);
        }
        drop(store.close().await);
    });
}

fn url(corpus: &Corpus, bytes: &[u8]) {
    let name = String::from_utf8_lossy(bytes);
    let settings = HubSettings {
        cache: corpus.folder.join("hub"),
        token: None,
        endpoint: "https://example.invalid".to_owned(),
        offline: true,
    };
    drop(ModelFiles::resolve_with(&name, &settings));
}

/// Numbers that look random and are the same in every run (splitmix64, Steele et al. 2014).
pub(super) struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `most`; 0 where that is 0.
    pub(super) fn below(&mut self, most: usize) -> usize {
        (self.next() % most.max(1) as u64) as usize
    }
}

/// Words that are put into inputs: values at the edge of their types, brackets, and what languages of the readers are
/// made of.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1e999",
    "-1e999",
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    "\"\"",
    "18446744073709551615",
    "9223372036854775808",
    "-9223372036854775808",
    "4294967296",
    "1e-400",
    "99999999999999999999999999",
    "\\u0000",
    "\u{fffd}",
    "\u{202e}",
    "\r\n",
    ",",
    ":",
    "&a",
    "*a",
    "<<",
    "!!binary",
    "{{",
    "}}",
    "{%",
    "%}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "|",
    "~",
    "*",
    "(",
    ")",
    "'",
    "\"",
    "..",
    "/",
    "//",
    "@",
    "%00",
    "?study=",
    "#",
    "-",
    "\t",
    "- ",
    "~5",
    "..=",
    "64k",
    "1e3",
    "30m",
    "GiB",
];

/// A mutated copy: a few changes of bytes, numbers, words and pieces.
pub(super) fn mutated(input: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = input.to_vec();
    // Headers lie in front; what changes them reaches the readers' logic.
    let reach = if dice.below(2) == 0 {
        bytes.len()
    } else {
        bytes.len().min(4096)
    };
    for _ in 0..=dice.below(6) {
        let at = dice.below(reach.min(bytes.len()) + 1);
        let length = 1 + dice.below(40).min(dice.below(40));
        let end = (at + length).min(bytes.len());
        match dice.below(9) {
            0 => bytes
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << dice.below(8)),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            3 | 4 => {
                let word = WORDS[dice.below(WORDS.len())];
                let to = if dice.below(2) == 0 { at } else { end };
                drop(bytes.splice(at..to, word.bytes()));
            }
            5 => {
                // A number, wherever the next one stands.
                let digit = |byte: &u8| byte.is_ascii_digit();
                if let Some(start) = bytes[at..].iter().position(digit).map(|start| at + start) {
                    let digits = bytes[start..].iter().take_while(|byte| digit(byte)).count();
                    let word = WORDS[dice.below(17)];
                    drop(bytes.splice(start..start + digits, word.bytes()));
                }
            }
            6 => bytes.truncate(at),
            7 => {
                let piece = [b'[', b'{', b'(', b'a', 0, 0xff, b' ', b'\n', b'"'][dice.below(9)];
                let times = [1, 8, 200, 5000][dice.below(4)];
                drop(bytes.splice(at..at, std::iter::repeat_n(piece, times)));
            }
            _ => {
                let from = dice.below(bytes.len() + 1);
                let piece = bytes[from..(from + length).min(bytes.len())].to_vec();
                drop(bytes.splice(at..end, piece));
            }
        }
    }
    bytes
}

/// The inputs that each reader begins with.
pub(super) fn all_inputs(corpus: &Corpus) -> Vec<Vec<Vec<u8>>> {
    READERS.iter().map(|reader| (reader.inputs)(corpus)).collect()
}

/// Lets a reader read bytes, as a target of cargo-fuzz does.
#[allow(dead_code, reason = "only the targets of cargo-fuzz call it")]
pub(super) fn read_with(name: &str, bytes: &[u8]) {
    static CORPUS: OnceLock<(tempfile::TempDir, Corpus)> = OnceLock::new();
    let (_, corpus) = CORPUS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder to write to");
        let corpus = Corpus::new(
            Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")),
            folder.path(),
            Vec::new(),
        );
        (folder, corpus)
    });
    if let Some(reader) = READERS.iter().find(|reader| reader.name == name) {
        (reader.read)(corpus, bytes);
    }
}

/// One case: which reader, and what it reads.
pub(super) fn case(inputs: &[Vec<Vec<u8>>], seed: u64, number: u64) -> (&'static Reader, Vec<u8>) {
    let mut dice = Dice(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    // Those that write large files take their turn less often.
    let index = loop {
        let index = dice.below(READERS.len());
        let is_slow = matches!(
            READERS[index].name,
            "safetensors" | "database" | "tokenizer" | "parquet"
        );
        if !is_slow || dice.below(10) == 0 {
            break index;
        }
    };
    let of_reader = &inputs[index];
    let input = &of_reader[dice.below(of_reader.len())];
    (&READERS[index], mutated(input, &mut dice))
}

const RECIPE: &str = "model: ./base
data: {train: [a.jsonl], held_out: 0.1, format: messages, loss_on: answers}
precision: bf16
adapter: {rank: 16, alpha: 32, dropout: 0.05, target_modules: all-linear, dora: false}
optimizer: {kind: adamw, learning_rate: 2e-4, weight_decay: 0.01}
schedule: {kind: cosine, warmup: 0.03}
batch: {micro_batch: 4, gradient_accumulation: 4, sequence_length: 1024, packing: true}
gradient_checkpointing: every_2
training: {length: {tokens: 1M}, seed: 1, evaluate_every: 100}
";

const STACKS: [&str; 5] = [
    "model_name_or_path: m\nuse_peft: true\nlora_r: 8\nlora_target_modules: [q_proj, v_proj]\nload_in_4bit: true\nmax_length: 512\n",
    "base_model: m\nadapter: qlora\nlora_r: 32\nlora_target_linear: true\nmicro_batch_size: 2\nsequence_len: 4096\nplugins: [a.b]\n",
    "model:\n  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b\n  lora_rank: 16\nbatch_size: 2\ntokenizer:\n  max_seq_len: 1024\n",
    "trl sft --model_name_or_path m --use_peft --lora_r 4 --per_device_train_batch_size=3\n",
    "LR=${1:-1e-4}\nARGS=(--lora_r $((2 * 4)))\nif [ -f f ]; then LR=1; fi\ncat <<EOF\n$LR\nEOF\ntrl sft --learning_rate $LR \"${ARGS[@]}\" \"$@\"\n",
];

const TEMPLATES: [&str; 3] = [
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{%- set ns = namespace(found=false) -%}{%- for m in messages -%}{%- if m.role == 'system' -%}{%- set ns.found = true -%}{%- endif -%}{{ m.content | trim | upper }}{% generation %}{{ m.content[:3] }}{% endgeneration %}{%- endfor -%}{{ ns.found | tojson(indent=2) }}",
    "{% macro show(x, n=2) %}{{ x ~ n }}{{ '%03d' | format(n) }}{{ x | indent(n) }}{% endmacro %}{% for m in messages %}{{ show(m.content, loop.index) }}{{ strftime_now('%Y') }}{% if m.content is string and 'a' in m.content %}{{ m.content.split(' ')[-1].strip() }}{% endif %}{% endfor %}",
];

const PROTOCOL: [&str; 5] = [
    "{\"event\":\"step\",\"number\":3,\"phase\":\"train\",\"step\":{\"step\":1,\"loss\":2.5,\"learning_rate\":1e-3,\"grad_norm\":1.0,\"tokens\":10,\"target_tokens\":9,\"seconds\":{\"data\":0.1,\"forward\":0.1,\"backward\":0.1,\"optimizer\":0.1,\"total\":0.4}}}",
    "{\"event\":\"ended\",\"number\":3,\"state\":{\"state\":\"complete\",\"metrics\":{\"loss\":1.5}},\"wall_s\":1.0}",
    "{\"event\":\"hello\",\"protocol\":3,\"version\":\"0.1.0\",\"process\":1,\"host\":\"a\",\"device\":\"cpu\",\"threads\":2}",
    "{\"event\":\"report\",\"number\":1,\"step\":7,\"metrics\":{\"loss\":null}}",
    "{\"request\":\"hello\",\"protocol\":3,\"version\":\"0.1.0\",\"heartbeat_s\":1.0,\"take_turns\":false}",
];

const NAMES: [&str; 4] = [
    "owner/name",
    "owner/name@main",
    "./base",
    "https://huggingface.co/owner/name",
];
