//! A plan as text and JSON.

use std::fmt::Write;

use serde::Serialize;
use serde_json::json;

use crate::cli::study::track;
use crate::report::{
    Align, Lengths, Padder, TextTable, bytes, dollars, duration, metric_value, param_value, price_text, printable,
};
use crate::space::Study;
use crate::tools::Tool;
use crate::tune::{CostSurvey, Forecast, FullTraining, SurveyedSetting};
use peft_tune_core::objective::SERVE_MS_PER_TOKEN;
use peft_tune_core::predict::{DataSheet, Imbalance, Scaling, WorkerPrice};

/// A speed that was measured beside other programs: nothing is put in order by it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct About {
    /// Tokens per second of the fastest setting that fits.
    pub tokens_per_s: Option<f64>,
    /// Share that other programs may have taken.
    pub disturbed: f64,
}

/// Plan of a study, with all that it says.
pub(super) struct StudyPlan<'a> {
    pub study: &'a Study,
    pub survey: &'a CostSurvey,
    pub forecast: &'a Forecast,
    /// Price of what the trials run on, where it is known.
    pub price: Option<&'a WorkerPrice>,
    pub machine: &'a str,
    /// Speed that was measured beside other programs, where the machine's own is not known for that reason.
    pub about: Option<&'a About>,
    pub sheet: Option<&'a DataSheet>,
    /// Lengths of the rows to train on, where they could be looked at.
    pub lengths: Option<&'a Lengths>,
    /// Stack that trains; `None` for the native engine.
    pub stack: Option<Tool>,
    /// Whether the device's memory is the host's.
    pub is_host: bool,
}

impl About {
    fn text(&self) -> String {
        let about = self.tokens_per_s.map_or_else(String::new, |speed| {
            format!(
                ", about {} tokens/s for the fastest setting",
                metric_value("throughput", speed)
            )
        });
        format!(
            "unknown{about}: other programs took up to {:.0}% of it while it was measured; plan again when they are done",
            100.0 * self.disturbed
        )
    }
}

/// The plan for people: facts, the data's lengths, the predicted front, the `top` fastest settings.
pub(super) fn to_text(plan: &StudyPlan<'_>, top: usize, width: Option<usize>) -> String {
    let StudyPlan {
        study,
        survey,
        price,
        machine,
        about,
        lengths,
        stack,
        is_host,
        ..
    } = plan;
    let mut text = format!("plan of study {}\n", printable(&study.name));
    let size = survey
        .size
        .map_or_else(|| "continuous".to_owned(), |size| size.to_string());
    let looked_at = match survey.size == Some(survey.looked_at) {
        true => String::new(),
        false => format!(", {} looked at", survey.looked_at),
    };
    let limit = survey.limit.map_or_else(
        || "none is known".to_owned(),
        |limit| format!("{} ({})", bytes(limit.bytes), limit.from.text()),
    );
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<14}{}", printable(&value));
    };
    if let Some(base) = &study.base {
        line("model", base.model.clone());
    }
    let trains_in = stack.map_or_else(String::new, |stack| format!(", in {}", stack.title()));
    line("machine", format!("{machine}{trains_in}"));
    if let Some(about) = about {
        line("speed", about.text());
    }
    line(
        "settings",
        format!(
            "{size}{looked_at}; {} of them differ in speed or memory",
            survey.settings.len()
        ),
    );
    let share = 100.0 * survey.fitting as f64 / survey.looked_at.max(1) as f64;
    let perhaps = match survey.perhaps_fitting {
        0 => String::new(),
        more => format!("; {more} more may, within the prediction's error"),
    };
    line(
        "memory limit",
        format!("{limit}: {} settings fit ({share:.0}%){perhaps}", survey.fitting),
    );
    if survey.predicted < survey.looked_at {
        let reason = survey.first_reason.as_deref().unwrap_or_default();
        let without = survey.looked_at - survey.predicted;
        line("impossible", format!("{without} settings, such as: {reason}"));
    }
    if let (Some(trial), Some(search)) = (survey.trial_s, survey.search_s) {
        line(
            "time",
            format!("{} a trial, {} the search", duration(trial), duration(search)),
        );
        if let Some(price) = price {
            let (trial, search) = (dollars(price.usd(trial)), dollars(price.usd(search)));
            line(
                "cost",
                format!("{trial} a trial, {search} the search, {}", price_text(&price.device)),
            );
        }
    }
    if let Some(Imbalance { zipf, crowded }) = survey.imbalance {
        line(
            "experts",
            format!(
                "equally loaded; with shares of 1/n a step takes {zipf:.2} times as long, all at the same {crowded:.2}"
            ),
        );
    }
    if let Some(scaling) = fastest_scaling(plan) {
        line("devices", scaling.to_string());
    }
    if let Some(offload) = offload_text(study, survey, *is_host) {
        line("host memory", offload);
    }
    if let Some(places) = track::places(study) {
        line("tracked", places);
    }
    let padder = if stack.is_some() { Padder::Stack } else { Padder::Nobody };
    text.extend(lengths.map(|lengths| lengths.to_text(padder, width)));
    let front: Vec<&SurveyedSetting> = survey.front.iter().map(|index| &survey.settings[*index]).collect();
    let fitting = survey.settings.iter().filter(|one| one.fits);
    let best: Vec<&SurveyedSetting> = fitting.take(top).collect();
    let knows_speed = survey.fastest().is_some();
    let title = if knows_speed {
        "fastest settings that fit"
    } else {
        "settings that fit, least memory first"
    };
    let front = if knows_speed { front } else { Vec::new() };
    for (title, settings) in [("predicted front", front), (title, best)] {
        if !settings.is_empty() {
            let _ = write!(text, "\n{title}\n{}\n", table(plan, &settings).to_text(width));
        }
    }
    text
}

/// Scaling of the fastest setting that fits and has several devices.
fn fastest_scaling(plan: &StudyPlan<'_>) -> Option<Scaling> {
    // Where no speed is known, none would be found among all of them.
    plan.survey.fastest()?;
    let mut fitting = plan.survey.settings.iter().filter(|one| one.fits);
    fitting.find_map(|one| plan.forecast.scaling(&one.params))
}

/// What updates take of the host's memory, where some setting has them or their states there.
fn offload_text(study: &Study, survey: &CostSurvey, is_host: bool) -> Option<String> {
    let most = survey
        .settings
        .iter()
        .map(|one| one.prediction.host_bytes)
        .max()
        .unwrap_or(0);
    if most > 0 {
        let waits = match study.offloads_updates() {
            true => {
                ", and for values and gradients where updates are on the host; with `max_grad_norm` those begin behind the backward pass"
            }
            false => "",
        };
        return Some(format!("up to {} for optimizer states{waits}", bytes(most as f64)));
    }
    (is_host && study.offloads_updates()).then(|| {
        "`optimizer_offload: host` frees nothing here, and changes nothing: the device's memory is the host's"
            .to_owned()
    })
}

/// The full training of each setting, where something is known of its cost.
fn trainings(plan: &StudyPlan<'_>, settings: &[&SurveyedSetting]) -> Option<Vec<String>> {
    let price = &plan.price?.device;
    let cost = |training: FullTraining| {
        let cost = dollars(training.usd(price));
        format!("{}, {cost}", duration(training.seconds))
    };
    let trainings = settings.iter().map(|one| one.full_training(plan.forecast).map(cost));
    let trainings: Vec<Option<String>> = trainings.collect();
    let is_known = trainings.iter().any(Option::is_some);
    let text = |training: Option<String>| training.unwrap_or_else(|| "-".to_owned());
    is_known.then(|| trainings.into_iter().map(text).collect())
}

fn table(plan: &StudyPlan<'_>, settings: &[&SurveyedSetting]) -> TextTable {
    let mut names: Vec<&String> = settings.iter().flat_map(|one| one.params.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let trainings = trainings(plan, settings);
    let measured = ["tokens/s", "+-", "peak memory", "+-"].into_iter();
    let is_served = settings.iter().any(|one| one.serve_ms.is_some());
    let measured = measured.chain(is_served.then_some("served token"));
    let measured = measured.chain(trainings.is_some().then_some("full training"));
    let measured = measured.map(|name| (name.to_owned(), Align::Right));
    let params = names.iter().map(|name| ((*name).clone(), Align::Left));
    let mut table = TextTable::new(measured.chain(params));
    for (index, one) in settings.iter().enumerate() {
        let percent = |deviation: f64| format!("{:.0}%", 100.0 * deviation);
        // A device without ceilings and data sheet.
        let knows_speed = one.tokens_per_s.value > 0.0;
        let of_speed = |text: String| if knows_speed { text } else { "-".to_owned() };
        let mut cells = vec![
            of_speed(metric_value("throughput", one.tokens_per_s.value)),
            of_speed(percent(one.tokens_per_s.deviation)),
            bytes(one.peak_bytes.value),
            percent(one.peak_bytes.deviation),
        ];
        let served = one
            .serve_ms
            .map(|served| metric_value(SERVE_MS_PER_TOKEN, served.value));
        cells.extend(is_served.then(|| served.unwrap_or_else(|| "-".to_owned())));
        cells.extend(trainings.as_ref().map(|trainings| trainings[index].clone()));
        let value = |name: &&String| one.params.get(name).map_or_else(|| "-".to_owned(), param_value);
        cells.extend(names.iter().map(value));
        table.push(cells);
    }
    table
}

/// The plan with raw numbers; `settings` holds the `top` fastest that fit, and all parts of each one's memory and time.
pub(super) fn to_json(plan: &StudyPlan<'_>, top: usize) -> serde_json::Result<String> {
    let StudyPlan {
        study,
        survey,
        forecast,
        price,
        machine,
        about,
        sheet,
        lengths,
        stack,
        is_host: _,
    } = plan;
    let usd = |seconds: Option<f64>| Some(price.as_ref()?.usd(seconds?));
    let one = |one: &SurveyedSetting| {
        let training = one.full_training(forecast);
        let training_usd = price.zip(training).map(|(price, training)| training.usd(&price.device));
        json!({
            "params": one.params,
            "throughput": (one.tokens_per_s.value > 0.0).then_some(one.tokens_per_s),
            "peak_memory": one.peak_bytes,
            "serve_ms_per_token": one.serve_ms,
            "memory_by_part": one.prediction.bytes,
            "host_memory": one.prediction.host_bytes,
            "seconds_by_part": one.prediction.seconds,
            "tokens_per_step": one.prediction.tokens,
            "scaling": forecast.scaling(&one.params),
            "full_training_s": training.map(|training| training.seconds),
            "full_training_usd": training_usd,
        })
    };
    let front: Vec<_> = survey.front.iter().map(|index| one(&survey.settings[*index])).collect();
    let best: Vec<_> = survey
        .settings
        .iter()
        .filter(|one| one.fits)
        .take(top)
        .map(one)
        .collect();
    serde_json::to_string_pretty(&json!({
        "study": study.name,
        "track": study.track.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "machine": machine,
        "stack": stack.map(Tool::name),
        "speed_about": about,
        "data_sheet": sheet,
        "size": survey.size,
        "looked_at": survey.looked_at,
        "predicted": survey.predicted,
        "fitting": survey.fitting,
        "perhaps_fitting": survey.perhaps_fitting,
        "different_in_cost": survey.settings.len(),
        "limit_bytes": survey.limit.map(|limit| limit.bytes),
        "limit_from": survey.limit.map(|limit| limit.from),
        "impossible_because": survey.first_reason,
        "trial_s": survey.trial_s,
        "search_s": survey.search_s,
        "price": price,
        "trial_usd": usd(survey.trial_s),
        "search_usd": usd(survey.search_s),
        "imbalance": survey.imbalance,
        "data": lengths,
        "front": front,
        "settings": best,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_that_was_measured_beside_other_programs_is_called_unknown() {
        let about = About {
            tokens_per_s: Some(187.4),
            disturbed: 0.63,
        };
        assert_eq!(
            about.text(),
            "unknown, about 187 tokens/s for the fastest setting: other programs took up to 63% of it while it was measured; \
             plan again when they are done"
        );
    }
}
