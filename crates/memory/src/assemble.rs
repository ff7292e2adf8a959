//! Renders the history of a session for a prompt: plans the gradient, renders its bands as tagged
//! text, and stores that text until the next plan, so that the beginning of a prompt stays
//! cacheable.

use selvedge_database::{Connection, params};

use crate::eras::{self, EraTokenCounts};
use crate::gradient::{
    Band, GradientOptions, GradientPlan, REPLAN_INTERVAL_TURNS, plan_gradient, standalone_cost,
};
use crate::level::{Level, TaggedSpan, escape_tags};
use crate::level_writer::read_level_text;
use crate::store::{
    MemorySessionRow, execute, load_turn, query_first, query_rows, require_session, turn_id,
};
use crate::turn_metrics::{self, TurnMetrics};
use crate::{Memory, MemoryError};

/// Whether a new plan is stored, so that its text stays the same until the next plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanStorage {
    /// The plan and its text are stored: for prompts, whose beginning must not change.
    Store,
    /// Nothing is stored: for display.
    Discard,
}

/// The history of a session, rendered within a budget.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AssembledHistory {
    /// The rendered turns, oldest first, each tag on a line of its own.
    pub text: String,
    /// The bands of the text, oldest first, without gaps.
    pub bands: Vec<Band>,
    /// An upper bound of the tokens of `text`.
    pub tokens: u32,
    /// Tokens left for the turns before the next plan.
    pub reserve_tokens: u32,
    /// The last turn that the plan covers. Later turns are appended in full.
    pub last_planned_turn: u32,
    /// Bytes of `text` that render the plan. They do not change until the next plan.
    pub planned_bytes: usize,
}

impl Memory {
    /// Renders the history of a session for a prompt: every turn, older turns at lower levels of
    /// detail. Until the number of turns reaches the next multiple of ten, the text only grows at
    /// its end.
    pub fn assemble(
        &self,
        session: &str,
        gradient: GradientOptions,
        keep: PlanStorage,
    ) -> Result<AssembledHistory, MemoryError> {
        if self.turn_count(session)? == 0 {
            return Ok(AssembledHistory {
                reserve_tokens: gradient.budget,
                ..AssembledHistory::default()
            });
        }
        self.write_missing_levels(session)?;
        let (assembled, new_plan, id) =
            self.read(|reader| assemble_gradient(&reader.connection, session, &gradient))?;
        if let (Some(stored_plan), PlanStorage::Store) = (new_plan, keep) {
            self.write(|connection| stored_plan.write(connection, id, &gradient))?;
        }
        Ok(assembled)
    }
}

/// A plan and its rendered text, as stored in `memory_gradients`.
struct StoredPlan {
    last_planned_turn: u32,
    reserve_tokens: u32,
    bands: Vec<Band>,
    text: String,
}

impl StoredPlan {
    /// Reads the stored plan for this session, budget and these shares. A plan that cannot be
    /// parsed counts as none.
    fn read(
        connection: &Connection,
        session: i64,
        gradient: &GradientOptions,
    ) -> Result<Option<Self>, MemoryError> {
        let sql = "SELECT planned, reserve, bands, decrypt(text) FROM memory_gradients
             WHERE session = ?1 AND budget = ?2 AND shares = ?3";
        let key = params![session, gradient.budget, shares_key(gradient)];
        let found: Option<(u32, u32, String, String)> =
            query_first(connection, sql, key, |row| row.try_into())?;
        Ok(found.and_then(|(planned, reserve, bands, text)| {
            let bands = parse_bands(&bands)?;
            Some(Self {
                last_planned_turn: planned,
                reserve_tokens: reserve,
                bands,
                text,
            })
        }))
    }

    fn write(
        &self,
        connection: &Connection,
        session: i64,
        gradient: &GradientOptions,
    ) -> Result<(), MemoryError> {
        let GradientOptions { budget, .. } = gradient;
        let (shares, bands) = (shares_key(gradient), format_bands(&self.bands));
        execute(
            connection,
            "INSERT INTO memory_gradients (session, budget, shares, planned, reserve, bands, text)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, encrypt(?7))
             ON CONFLICT (session, budget, shares) DO UPDATE SET planned = excluded.planned,
                reserve = excluded.reserve, bands = excluded.bands, text = excluded.text",
            params![
                session,
                budget,
                shares,
                self.last_planned_turn,
                self.reserve_tokens,
                bands,
                self.text
            ],
        )?;
        Ok(())
    }
}

/// Formats the shares of the bands as a database key: `40/16/30/14`.
fn shares_key(gradient: &GradientOptions) -> String {
    gradient
        .band_shares
        .map(|share| share.to_string())
        .join("/")
}

/// Formats bands for the database: first and last turn, level, era flag and tokens of each.
fn format_bands(bands: &[Band]) -> String {
    let band = |band: &Band| {
        let TaggedSpan { first, last, level } = band.span;
        let (era, tokens) = (u8::from(band.era), band.tokens);
        format!("{first}-{last}{}{era}{tokens}", level.letter())
    };
    bands.iter().map(band).collect::<Vec<_>>().join(" ")
}

/// Parses what `format_bands` wrote.
fn parse_bands(line: &str) -> Option<Vec<Band>> {
    let band = |text: &str| {
        let at = text.find(|c: char| c.is_ascii_uppercase())?;
        let (first, last) = text[..at].split_once('-')?;
        let level = text.get(at..at + 1)?.parse().ok()?;
        Some(Band {
            span: TaggedSpan::new(first.parse().ok()?, last.parse().ok()?, level),
            era: text.get(at + 1..at + 2)? == "1",
            tokens: text.get(at + 2..)?.parse().ok()?,
        })
    };
    line.split_whitespace().map(band).collect()
}

/// An assembled history, the new plan if one was made, and the id of the session.
type AssemblyWithPlan = (AssembledHistory, Option<StoredPlan>, i64);

/// Renders the stored plan, or a new one if the number of turns has passed a multiple of ten since,
/// or if a turn after the plan does not fit into the budget.
fn assemble_gradient(
    connection: &Connection,
    name: &str,
    gradient: &GradientOptions,
) -> Result<AssemblyWithPlan, MemoryError> {
    let session = require_session(connection, name)?;
    let turns = session.turn_count;
    let stored_plan = StoredPlan::read(connection, session.id, gradient)?;
    let stored_plan = stored_plan.filter(|stored_plan| {
        stored_plan.last_planned_turn <= turns
            && stored_plan.last_planned_turn / REPLAN_INTERVAL_TURNS
                == turns / REPLAN_INTERVAL_TURNS
    });
    let mut metrics = Vec::new();
    let (mut new_plan, mut assembled) = (None, AssembledHistory::default());
    match stored_plan {
        Some(stored_plan) => {
            // The metrics of turns that the stored plan covers are not needed, so they stay empty.
            metrics.resize(
                stored_plan.last_planned_turn as usize,
                TurnMetrics::default(),
            );
            turn_metrics::read_metrics(
                connection,
                session.id,
                stored_plan.last_planned_turn + 1,
                turns,
                &mut metrics,
            )?;
            assembled = AssembledHistory::from_stored_plan(&stored_plan);
        }
        None => {
            turn_metrics::read_metrics(connection, session.id, 1, turns, &mut metrics)?;
            let planned = turns / REPLAN_INTERVAL_TURNS * REPLAN_INTERVAL_TURNS;
            new_plan = Some(assembled.replan(connection, &session, &metrics, planned, gradient)?);
        }
    }
    while let Some(next) = assembled.first_overflowing_turn(&metrics, gradient.budget) {
        if metrics.first() == Some(&TurnMetrics::default()) {
            metrics.clear();
            turn_metrics::read_metrics(connection, session.id, 1, turns, &mut metrics)?;
        }
        new_plan = Some(assembled.replan(connection, &session, &metrics, next, gradient)?);
    }
    assembled.append_unplanned(connection, &session, &metrics)?;
    Ok((assembled, new_plan, session.id))
}

impl AssembledHistory {
    fn from_stored_plan(stored_plan: &StoredPlan) -> Self {
        Self {
            text: stored_plan.text.clone(),
            bands: stored_plan.bands.clone(),
            tokens: stored_plan.bands.iter().map(|band| band.tokens).sum(),
            reserve_tokens: stored_plan.reserve_tokens,
            last_planned_turn: stored_plan.last_planned_turn,
            planned_bytes: stored_plan.text.len(),
        }
    }

    /// Plans the first `planned` turns, renders them, and replaces `self` by the result.
    fn replan(
        &mut self,
        connection: &Connection,
        session: &MemorySessionRow,
        metrics: &[TurnMetrics],
        planned: u32,
        gradient: &GradientOptions,
    ) -> Result<StoredPlan, MemoryError> {
        let eras = EraTokenCounts::read(connection, session.id)?;
        let GradientPlan {
            bands,
            reserve_tokens: reserve,
            ..
        } = plan_gradient(&metrics[..planned as usize], gradient, &eras);
        let mut text = String::new();
        for band in &bands {
            render_band(connection, session, band, &mut text)?;
        }
        let stored_plan = StoredPlan {
            last_planned_turn: planned,
            reserve_tokens: reserve,
            bands,
            text,
        };
        *self = Self::from_stored_plan(&stored_plan);
        Ok(stored_plan)
    }

    /// Returns the first turn after the plan that does not fit into the budget as raw text.
    fn first_overflowing_turn(&self, metrics: &[TurnMetrics], budget: u32) -> Option<u32> {
        let mut tokens = self.tokens;
        let overflowing = unplanned_bands(self.last_planned_turn, metrics).find(|band| {
            tokens += band.tokens;
            tokens > budget
        });
        overflowing.map(|band| band.span.first)
    }

    /// Renders the turns after the plan in full.
    fn append_unplanned(
        &mut self,
        connection: &Connection,
        session: &MemorySessionRow,
        metrics: &[TurnMetrics],
    ) -> Result<(), MemoryError> {
        for band in unplanned_bands(self.last_planned_turn, metrics) {
            render_band(connection, session, &band, &mut self.text)?;
            self.tokens += band.tokens;
            self.reserve_tokens = self.reserve_tokens.saturating_sub(band.tokens);
            self.bands.push(band);
        }
        Ok(())
    }
}

/// Returns the turns after the plan, each as a raw band.
fn unplanned_bands(planned: u32, metrics: &[TurnMetrics]) -> impl Iterator<Item = Band> {
    (planned + 1..)
        .zip(&metrics[planned as usize..])
        .map(|(number, metrics)| {
            let tokens = standalone_cost(number, metrics, Level::Raw);
            Band::new(TaggedSpan::single(number, Level::Raw), tokens)
        })
}

/// Renders a band with its tags.
fn render_band(
    connection: &Connection,
    session: &MemorySessionRow,
    band: &Band,
    out: &mut String,
) -> Result<(), MemoryError> {
    let TaggedSpan { first, last, level } = band.span;
    let text = match level {
        Level::Raw => {
            let turn = load_turn(connection, session.id, first)?;
            turn.map(|turn| String::from_utf8_lossy(&turn.raw).into_owned())
                .unwrap_or_default()
        }
        _ if band.era => eras::era_text(connection, session.id, band.span)?,
        Level::Smoothed => {
            read_level_text(connection, session.id, first, level)?.unwrap_or_default()
        }
        Level::Compressed | Level::Tiny => {
            let sql = format!(
                "SELECT id, decrypt({}) FROM memory_levels WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
                level.as_str()
            );
            let ids = params![turn_id(session.id, first), turn_id(session.id, last)];
            let texts: Vec<(i64, String)> =
                query_rows(connection, &sql, ids, |row| row.try_into())?;
            let texts = texts.iter().filter(|(_, text)| !text.is_empty());
            let lines = texts.map(|(id, text)| format!("{}: {text}", *id as u32));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    band.span.wrap(&escape_tags(&text), out);
    Ok(())
}
