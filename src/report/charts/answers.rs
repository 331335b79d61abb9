//! The answers' pictures: neighbours of the recommended setting, what settings are worth, where the search looked, how sure the
//! loss is, what more time would bring.

use super::axis::{Area, Scale, ScaleOptions, frame};
use super::courses::{growth_line, minutes};
use super::svg::{Anchor, BEST, FRONT, GRID, LINE, OTHER, PALE, Svg, Weight, short};
use crate::report::answers::{
    Answers, Comparison, Coverage, LossCertainty, MoreTime, Neighbour, NeighbourBasis, NeighbourMetric,
};
use crate::report::html::Growth;
use crate::report::{metric_heading, metric_value, param_value};
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::ParamValue;
use peft_tune_search::Effect;

const WIDTH: f64 = 640.0;
const LINE_HEIGHT: f64 = 22.0;
/// Place at which the rows' names end.
const LEFT: f64 = 186.0;
/// Characters of a name that fit there.
const NAME: usize = 25;
const TOP: f64 = 50.0;
/// Rows of one picture.
const MOST: usize = 28;
/// Objectives side by side.
const MOST_PANELS: usize = 3;

/// The picture of an answer by its name; `None` where there is nothing to draw.
pub fn answer_picture(name: &str, study: &str, answers: &Answers, growth: Option<&Growth>) -> Option<String> {
    match name {
        "neighbours" => neighbours(study, &answers.neighbours),
        "worth" => worth(study, &answers.worth),
        "coverage" => coverage(study, &answers.coverage),
        "loss-certainty" => loss(study, answers.loss.as_ref()?),
        "more-time" => more_time(study, answers.more_time.as_ref()?, growth?),
        _ => None,
    }
}

/// Ends of a panel.
#[derive(Clone, Copy)]
struct Panel {
    left: f64,
    right: f64,
}

impl Panel {
    /// Panel `index` of `count`.
    fn new(index: usize, count: usize) -> Self {
        let width = (WIDTH - LEFT - 14.0) / count as f64;
        let left = LEFT + width * index as f64;
        Self {
            left: left + 8.0,
            right: left + width - 8.0,
        }
    }
}

/// The change of every neighbour against the recommended setting, a panel an objective.
fn neighbours(study: &str, neighbours: &[Neighbour]) -> Option<String> {
    let rows: Vec<&Neighbour> = neighbours
        .iter()
        .filter(|one| !one.metrics.is_empty())
        .take(MOST)
        .collect();
    let mut metrics: Vec<&str> = Vec::new();
    for metric in rows.iter().flat_map(|row| &row.metrics) {
        if !metrics.contains(&metric.metric.as_str()) {
            metrics.push(&metric.metric);
        }
    }
    metrics.truncate(MOST_PANELS);
    if metrics.is_empty() {
        return None;
    }
    let height = TOP + LINE_HEIGHT * rows.len() as f64 + 34.0;
    let mut svg = Svg::new(
        WIDTH,
        height,
        &format!("{study}: the neighbours of the recommended setting"),
    );
    svg.text(
        14.0,
        20.0,
        Anchor::Start,
        Weight::Quiet,
        "● measured · ○ predicted · — what is not known · the line at 0% is the recommended setting",
    );
    for (index, row) in rows.iter().enumerate() {
        let y = TOP + LINE_HEIGHT * (index as f64 + 0.5);
        let name = format!("{} {}", row.parameter, param_value(&row.value));
        svg.text(LEFT - 6.0, y + 4.0, Anchor::End, Weight::Plain, &short(&name, NAME));
    }
    for (index, metric) in metrics.iter().enumerate() {
        neighbour_panel(&mut svg, &rows, metric, Panel::new(index, metrics.len()));
    }
    Some(svg.finish())
}

/// The changes of one objective.
fn neighbour_panel(svg: &mut Svg, rows: &[&Neighbour], metric: &str, Panel { left, right }: Panel) {
    let of = |row: &Neighbour| row.metrics.iter().find(|one| one.metric == metric).cloned();
    let known: Vec<(usize, NeighbourMetric)> = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| Some((index, of(row)?)))
        .collect();
    // The recommended value, which every change is taken from.
    let own = known
        .iter()
        .map(|(_, one)| one.value / (1.0 + one.change))
        .find(|own| own.is_finite() && *own != 0.0);
    let own = own.unwrap_or(1.0);
    let share = |value: f64| 100.0 * (value - own) / own.abs();
    let ends = known.iter().flat_map(|(_, one)| [share(one.low), share(one.high)]);
    let pad = ScaleOptions {
        pad: 0.06,
        ..Default::default()
    };
    let scale = Scale::new(ends.chain([0.0]), left, right, pad);
    let bottom = TOP + LINE_HEIGHT * rows.len() as f64;
    svg.text(left, TOP - 8.0, Anchor::Start, Weight::Strong, &narrow_heading(metric));
    for (tick, text) in scale.ticks(2) {
        svg.line((scale.place(tick), TOP), (scale.place(tick), bottom), GRID);
        svg.text(
            scale.place(tick),
            bottom + 17.0,
            Anchor::Middle,
            Weight::Quiet,
            &format!("{text}%"),
        );
    }
    svg.line((scale.place(0.0), TOP), (scale.place(0.0), bottom), BEST);
    for (index, one) in known {
        let y = TOP + LINE_HEIGHT * (index as f64 + 0.5);
        let colour = match one.comparison {
            Comparison::Better => FRONT,
            Comparison::Worse => BEST,
            Comparison::Same | Comparison::CannotTell => OTHER,
        };
        let [low, middle, high] = [one.low, one.value, one.high].map(|value| scale.place(share(value)));
        svg.path(
            &[(low, y), (high, y)],
            &format!(r#"fill="none" stroke="{colour}" stroke-width="1.5""#),
        );
        let look = match rows[index].basis {
            NeighbourBasis::Measured { .. } => format!(r#"fill="{colour}""#),
            _ => format!(r##"fill="#ffffff" stroke="{colour}" stroke-width="1.6""##),
        };
        svg.circle(middle, y, 3.6, &look);
    }
}

/// What the best value of each parameter gains over the worst, a panel an objective.
fn worth(study: &str, effects: &[Effect]) -> Option<String> {
    let (mut parameters, mut metrics): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for effect in effects {
        if !parameters.contains(&effect.parameter.as_str()) {
            parameters.push(&effect.parameter);
        }
        if !metrics.contains(&effect.metric.as_str()) {
            metrics.push(&effect.metric);
        }
    }
    parameters.truncate(MOST);
    metrics.truncate(MOST_PANELS);
    if metrics.is_empty() {
        return None;
    }
    let height = TOP + LINE_HEIGHT * parameters.len() as f64 + 34.0;
    let mut svg = Svg::new(WIDTH, height, &format!("{study}: what each setting is worth"));
    let note = "the worst value against the best, the other settings held; pale where the trials cannot tell";
    svg.text(14.0, 20.0, Anchor::Start, Weight::Quiet, note);
    for (index, parameter) in parameters.iter().enumerate() {
        let y = TOP + LINE_HEIGHT * (index as f64 + 0.5);
        svg.text(LEFT - 6.0, y + 4.0, Anchor::End, Weight::Plain, &short(parameter, NAME));
    }
    for (index, metric) in metrics.iter().enumerate() {
        let of = |parameter: &&str| {
            effects
                .iter()
                .find(|one| one.parameter == **parameter && one.metric == *metric)
        };
        let rows: Vec<(usize, &Effect)> = parameters
            .iter()
            .enumerate()
            .filter_map(|(row, parameter)| Some((row, of(parameter)?)))
            .collect();
        let panel = Panel::new(index, metrics.len());
        worth_panel(&mut svg, &rows, metric, panel, parameters.len());
    }
    Some(svg.finish())
}

/// The effects on one objective, each in the row of its parameter; the picture has `count` rows.
fn worth_panel(svg: &mut Svg, rows: &[(usize, &Effect)], metric: &str, Panel { left, right }: Panel, count: usize) {
    let share = |one: &Effect| {
        let share = 100.0 * (one.worst_value - one.best_value) / one.best_value.abs();
        if share.is_finite() { share } else { 0.0 }
    };
    let zero = ScaleOptions {
        zero: true,
        ..Default::default()
    };
    let half = |one: &Effect| {
        if one.tells {
            100.0 * half_of_difference(one)
        } else {
            0.0
        }
    };
    let sizes = rows.iter().map(|(_, one)| share(one).abs() + half(one));
    // Room for the number behind the longest bar.
    let scale = Scale::new(sizes.chain([1.0]), left, right - 44.0, zero);
    let bottom = TOP + LINE_HEIGHT * count as f64;
    svg.text(left, TOP - 8.0, Anchor::Start, Weight::Strong, &narrow_heading(metric));
    svg.line((left, TOP), (left, bottom), LINE);
    for (row, one) in rows {
        let y = TOP + LINE_HEIGHT * *row as f64 + 4.0;
        let end = scale.place(share(one).abs());
        svg.rect(left, y, end - left, 14.0, if one.tells { FRONT } else { PALE });
        let reach = [-half(one), half(one)].map(|by| scale.place((share(one).abs() + by).max(0.0)));
        let middle = y + 7.0;
        let look = format!(r#"fill="none" stroke="{OTHER}" stroke-width="1.5""#);
        svg.path(&[(reach[0], middle), (reach[1], middle)], &look);
        let end = end.max(reach[1]);
        let text = match share(one).abs() < 0.5 {
            true => "0%".to_owned(),
            false => format!("{:+.0}%", share(one)),
        };
        svg.text(end + 4.0, y + 11.0, Anchor::Start, Weight::Quiet, &text);
    }
}

/// Half of the 90% interval of the difference between the worst and the best value, as a share of the best: those of both ends
/// together.
fn half_of_difference(effect: &Effect) -> f64 {
    let of = |value: &ParamValue| effect.places.iter().find(|place| place.value == *value);
    let half = |value| of(value).map_or(0.0, |place| (place.high - place.low) / 2.0);
    let both = half(&effect.best).hypot(half(&effect.worst)) / effect.best_value.abs();
    if both.is_finite() { both } else { 0.0 }
}

/// A row a parameter, a field for each value or part of a range: the darker the more trainings.
fn coverage(study: &str, coverage: &[Coverage]) -> Option<String> {
    let rows: Vec<&Coverage> = coverage.iter().filter(|one| !one.cells.is_empty()).take(MOST).collect();
    let most = rows
        .iter()
        .flat_map(|row| &row.cells)
        .map(|cell| cell.trainings)
        .max()
        .filter(|most| *most > 0)?;
    let line = 36.0;
    let mut svg = Svg::new(
        WIDTH,
        40.0 + line * rows.len() as f64,
        &format!("{study}: where the search looked"),
    );
    svg.text(
        14.0,
        20.0,
        Anchor::Start,
        Weight::Quiet,
        "trainings by value; ★ the best; empty where there was none",
    );
    for (index, row) in rows.iter().enumerate() {
        let y = 34.0 + line * index as f64;
        svg.text(
            LEFT - 6.0,
            y + 14.0,
            Anchor::End,
            Weight::Plain,
            &short(&row.parameter, NAME),
        );
        let width = (WIDTH - LEFT - 14.0) / row.cells.len() as f64;
        for (column, cell) in row.cells.iter().enumerate() {
            let x = LEFT + width * column as f64;
            let strength = cell.trainings as f64 / most as f64;
            svg.rect(x + 1.0, y, width - 2.0, 18.0, GRID);
            let opacity = if cell.trainings == 0 {
                0.0
            } else {
                0.18 + 0.62 * strength
            };
            svg.faint_rect((x + 1.0, y), (width - 2.0, 18.0), FRONT, opacity);
            let star = if cell.holds_best { "★ " } else { "" };
            let text = format!("{star}{}", cell.trainings);
            svg.text(x + width / 2.0, y + 13.0, Anchor::Middle, Weight::Strong, &text);
            let characters = ((width / 6.9) as usize).max(3);
            svg.text(
                x + width / 2.0,
                y + 30.0,
                Anchor::Middle,
                Weight::Quiet,
                &short(&cell.values, characters),
            );
        }
    }
    Some(svg.finish())
}

/// The recommended trial's loss with its interval, and those of the best other trainings.
fn loss(study: &str, one: &LossCertainty) -> Option<String> {
    let half = one.half_interval;
    let mut rows: Vec<(u64, f64, bool)> = one
        .rivals
        .iter()
        .map(|rival| (rival.trial.0, rival.loss, rival.within_noise))
        .collect();
    rows.push((one.trial.0, one.loss, true));
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let bottom = TOP + LINE_HEIGHT * rows.len() as f64;
    let mut svg = Svg::new(WIDTH, bottom + 44.0, &format!("{study}: how sure the loss is"));
    let note = "held-out loss of the best trainings; the band is what is not known of the recommended one";
    svg.text(14.0, 20.0, Anchor::Start, Weight::Quiet, note);
    let options = ScaleOptions {
        metric: LOSS,
        pad: 0.08,
        ..Default::default()
    };
    let ends = rows.iter().map(|row| row.1).chain([one.loss - half, one.loss + half]);
    let scale = Scale::new(ends, LEFT, WIDTH - 70.0, options);
    let (low, high) = (scale.place(one.loss - half), scale.place(one.loss + half));
    svg.faint_rect((low, TOP), (high - low, bottom - TOP), FRONT, 0.14);
    for (tick, text) in scale.ticks(5) {
        svg.line((scale.place(tick), TOP), (scale.place(tick), bottom), GRID);
        svg.text(scale.place(tick), bottom + 17.0, Anchor::Middle, Weight::Quiet, &text);
    }
    svg.text(WIDTH - 70.0, bottom + 36.0, Anchor::End, Weight::Strong, "loss");
    for (index, (trial, loss, within)) in rows.iter().enumerate() {
        let y = TOP + LINE_HEIGHT * (index as f64 + 0.5);
        let (place, chosen) = (scale.place(*loss), *trial == one.trial.0);
        let name = if chosen {
            format!("★ trial {trial}")
        } else {
            format!("trial {trial}")
        };
        svg.text(LEFT - 12.0, y + 4.0, Anchor::End, Weight::Plain, &name);
        match chosen {
            true => svg.star(place, y, 8.0),
            false => svg.circle(
                place,
                y,
                4.0,
                &format!(r#"fill="{}""#, if *within { FRONT } else { OTHER }),
            ),
        }
        svg.text(
            WIDTH - 62.0,
            y + 4.0,
            Anchor::Start,
            Weight::Quiet,
            &metric_value(LOSS, *loss),
        );
    }
    Some(svg.finish())
}

/// The hypervolume until now, and where the model expects it after ten more minutes.
fn more_time(study: &str, one: &MoreTime, growth: &Growth) -> Option<String> {
    let last = growth.points.last()?;
    let area = Area {
        left: 60.0,
        right: WIDTH - 18.0,
        top: 44.0,
        bottom: 250.0,
    };
    let mut svg = Svg::new(WIDTH, 306.0, &format!("{study}: what ten more minutes would bring"));
    let zero = ScaleOptions {
        zero: true,
        ..Default::default()
    };
    let gain = one.expected.as_ref().map(|expected| 100.0 * expected.all);
    let end_s = last.elapsed_s + one.seconds;
    let x = Scale::new([0.0, minutes(end_s)], area.left, area.right, zero);
    let y = Scale::new([0.0, 100.0 + gain.unwrap_or(0.0)], area.bottom, area.top, zero);
    frame(&mut svg, area, &x, &y, ("minutes of trials", "hypervolume (% of now)"));
    growth_line(&mut svg, (&x, &y), growth);
    if let Some(gain) = gain {
        let (from, to) = (
            (x.place(minutes(last.elapsed_s)), y.place(100.0)),
            (x.place(minutes(end_s)), y.place(100.0 + gain)),
        );
        svg.path(
            &[from, to],
            &format!(r#"fill="none" stroke="{BEST}" stroke-width="2" stroke-dasharray="5 4""#),
        );
        let text = format!("+{gain:.1}% expected: a guess");
        svg.text(to.0 - 4.0, to.1 + 20.0, Anchor::End, Weight::Strong, &text);
    }
    Some(svg.finish())
}

/// A heading for a narrow column; the page says elsewhere what is predicted of a target.
fn narrow_heading(metric: &str) -> String {
    metric_heading(metric).trim_end_matches(" (predicted)").to_owned()
}
