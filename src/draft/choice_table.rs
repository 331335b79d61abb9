//! What was chosen for the trials of a study, and why, as a table for people.

use super::long_rows::{LongerRows, whole};
use super::plan::Plan;
use super::row_tokens::RowTokens;
use super::study_text::parameters_text;
use crate::report::{about_duration, grouped};

/// What the trials of a study were sized by.
pub(crate) struct Chosen<'a> {
    pub plan: &'a Plan,
    pub rows: &'a RowTokens,
    /// Rows that the sequence length is too short for, where there are any.
    pub longer: Option<&'a LongerRows>,
}

/// A line of the table.
struct Choice {
    name: &'static str,
    value: String,
    why: String,
}

impl Chosen<'_> {
    /// A line for each choice.
    pub(crate) fn table(&self) -> String {
        let mut choices = vec![
            self.sequence_length(),
            self.global_batch(),
            self.training(),
            self.evaluation(),
            self.learning_rate(),
        ];
        choices.extend(self.time());
        aligned("each trial, as the file says it:", &choices)
    }

    fn sequence_length(&self) -> Choice {
        let why = match (self.rows, self.longer) {
            (RowTokens::Counted(_), Some(few)) if few.are_few() => format!("{few} are longer and are left out"),
            (RowTokens::Counted(_), Some(many)) => format!("{many} are longer and are cut"),
            (RowTokens::Counted(lengths), None) if lengths.is_running => "longer texts are split".to_owned(),
            (RowTokens::Counted(lengths), None) if lengths.is_sample => {
                format!("none of the first {} rows is longer", whole(lengths.rows))
            }
            (RowTokens::Counted(lengths), None) => format!("none of {} rows is longer", whole(lengths.rows)),
            (RowTokens::Guessed(_), _) => "by the bytes of the rows: the model's tokenizer is not here".to_owned(),
            (RowTokens::Unknown, _) => "the lengths of the rows are not known".to_owned(),
        };
        Choice {
            name: "sequence length",
            value: format!("{} tokens", self.plan.sequence_length),
            why,
        }
    }

    fn global_batch(&self) -> Choice {
        let size = &self.plan.size;
        let why = match size.usual_seconds() {
            Some(seconds) => format!("16 rows would take about {} a trial", about_duration(seconds)),
            None => "as is usual".to_owned(),
        };
        Choice {
            name: "global batch",
            value: format!("{} rows", size.global_batch),
            why,
        }
    }

    fn training(&self) -> Choice {
        let size = &self.plan.size;
        Choice {
            name: "training",
            value: format!("{} tokens", whole(size.training_tokens)),
            why: size.steps_text(),
        }
    }

    fn evaluation(&self) -> Choice {
        let size = &self.plan.size;
        let times = if size.evaluation_times == 1 { "once" } else { "twice" };
        let tokens = size.evaluation_rows as f64 * size.row_tokens;
        Choice {
            name: "evaluation",
            value: format!("{} held-out rows, {times}", size.evaluation_rows),
            why: format!("about {} tokens", whole(tokens.round() as u64)),
        }
    }

    fn learning_rate(&self) -> Choice {
        let why = match self.plan.parameters {
            Some(parameters) => format!("for {}", parameters_text(parameters)),
            None => "the size of the model is not known".to_owned(),
        };
        Choice {
            name: "learning rate",
            value: self.plan.learning_rates.to_string(),
            why,
        }
    }

    fn time(&self) -> Option<Choice> {
        let size = &self.plan.size;
        Some(Choice {
            name: "time",
            value: format!("about {}", about_duration(size.seconds()?)),
            why: format!(
                "by a rough estimate of {} tokens/s; `plan` knows it better",
                grouped(size.pace?.tokens_per_s)
            ),
        })
    }
}

/// The lines below a heading, in columns.
fn aligned(heading: &str, choices: &[Choice]) -> String {
    let names = choices.iter().map(|choice| choice.name.len()).max().unwrap_or(0);
    let values = choices.iter().map(|choice| choice.value.len()).max().unwrap_or(0);
    let mut text = heading.to_owned();
    for Choice { name, value, why } in choices {
        text.push_str(&format!("\n  {name:<names$}  {value:<values$}  {why}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::rate_range::RateRange;
    use crate::draft::token_lengths::TokenLengths;
    use crate::draft::trial_size::{Pace, TrialSize};
    use peft_tune_core::recipe::Precision;

    fn plan(pace: Option<Pace>, parameters: Option<u64>) -> Plan {
        Plan {
            sequence_length: 448,
            micro_batches: vec![1, 2, 4, 8],
            ranks: vec![8],
            precisions: vec![Precision::Bf16],
            can_keep_activations: true,
            smallest_bytes: None,
            parameters,
            learning_rates: RateRange::of(parameters),
            size: TrialSize::new(217.0, pace),
            trains_in_trl: false,
            left_out: Vec::new(),
        }
    }

    #[test]
    fn each_choice_is_a_line_with_its_reason() {
        let pace = Pace {
            tokens_per_s: 600.0,
            most_s: 120.0,
        };
        let plan = plan(Some(pace), Some(134_515_008));
        let rows = RowTokens::Counted(TokenLengths::new([vec![217; 7406], vec![500; 67]].concat()));
        let longer = rows.longer(448);
        let chosen = Chosen {
            plan: &plan,
            rows: &rows,
            longer: longer.as_ref(),
        };
        insta::assert_snapshot!(chosen.table(), @r"
        each trial, as the file says it:
          sequence length  448 tokens              67 of 7,473 rows are longer and are left out
          global batch     8 rows                  16 rows would take about 3 min a trial
          training         72,000 tokens           41 steps of 8 rows of 217 tokens
          evaluation       80 held-out rows, once  about 17,360 tokens
          learning rate    1e-4 to 8e-3            for 134.5 million parameters
          time             about 2 min             by a rough estimate of 600 tokens/s; `plan` knows it better
        ");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let plan = plan(None, None);
        let chosen = Chosen {
            plan: &plan,
            rows: &RowTokens::Unknown,
            longer: None,
        };
        let table = chosen.table();
        assert!(
            table.contains("lengths of the rows are not known") && table.contains("size of the model is not known")
        );
        assert!(
            !table.contains("rough estimate") && table.contains("global batch     16 rows"),
            "{table}"
        );
    }
}
