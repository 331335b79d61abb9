mod corpus;
mod dice;
mod english;
mod lexicon;
mod meaning;
mod plots;
mod story;
mod tongue;
use std::io::Write;
fn main() {
    let out = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let rows = corpus::TaskRows::new(2000, 200);
    std::fs::write(out.join("train.jsonl"), corpus::to_jsonl(&rows.train)).unwrap();
    std::fs::write(out.join("held_out.jsonl"), corpus::to_jsonl(&rows.held_out)).unwrap();
    for (name, corpus, n) in [("base.jsonl", corpus::BaseCorpus::training(), 200000), ("base_held.jsonl", corpus::BaseCorpus::held_out(), 500)] {
        let mut file = std::io::BufWriter::new(std::fs::File::create(out.join(name)).unwrap());
        for document in corpus.take(n) {
            match document {
                corpus::Document::Text(text) => writeln!(file, "{}", serde_json::json!({ "text": text })).unwrap(),
                corpus::Document::Chat(row) => file.write_all(corpus::to_jsonl(&[row]).as_bytes()).unwrap(),
            }
        }
    }
}
