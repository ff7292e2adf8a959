//! Renders the history of a session for a prompt: plans the gradient, renders its bands as tagged
//! text, and pins that text until the next plan, so that the beginning of a prompt stays
//! cacheable.

use rusqlite::{Connection, params};

use crate::columns::{self, Numbers};
use crate::eras::{self, EraTokens};
use crate::gradient::{Band, Gradient, PERIOD, Plan, cost_alone, plan};
use crate::level::{Level, Span, escape};
use crate::levels::level_text;
use crate::store::{Session, execute, find, row, rows, stored, turn_id};
use crate::{Memory, MemoryError};

/// Which turns of a session are part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Strategy {
    /// Every turn; older turns at lower levels of detail.
    Gradient(Gradient),
    /// The newest turns in full, as many as fit into this number of tokens, and no others.
    Regular(u32),
    /// No turns.
    OneShot,
}

/// Whether a new plan is stored, so that its text stays the same until the next plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The plan and its text are stored: for prompts, whose beginning must not change.
    Pinned,
    /// Nothing is stored: for display.
    Nothing,
}

/// The history of a session, rendered within a budget.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assembled {
    /// The rendered turns, oldest first, each tag on a line of its own.
    pub text: String,
    /// The bands of the text, oldest first, without gaps.
    pub bands: Vec<Band>,
    /// An upper bound of the tokens of `text`.
    pub tokens: u32,
    /// Tokens left for the turns before the next plan.
    pub reserve: u32,
    /// The last turn that the plan covers. Later turns are appended in full.
    pub planned: u32,
    /// Bytes of `text` that render the plan. They do not change until the next plan.
    pub pinned: usize,
}

impl Memory {
    /// Renders the history of a session for a prompt. Until the number of turns reaches the next
    /// multiple of ten, the text only grows at its end.
    pub fn assemble(
        &self,
        session: &str,
        strategy: Strategy,
        keep: Keep,
    ) -> Result<Assembled, MemoryError> {
        let gradient = match strategy {
            Strategy::Gradient(gradient) => gradient,
            Strategy::Regular(budget) => return self.newest(session, budget),
            Strategy::OneShot => return Ok(Assembled::default()),
        };
        if self.turns(session)? == 0 {
            return Ok(Assembled {
                reserve: gradient.budget,
                ..Assembled::default()
            });
        }
        self.finish_levels(session)?;
        let (assembled, new_pin, id) =
            self.read(|reader| assembled(&reader.connection, session, &gradient))?;
        if let (Some(pin), Keep::Pinned) = (new_pin, keep) {
            self.write(|connection| pin.write(connection, id, &gradient))?;
        }
        Ok(assembled)
    }

    /// Renders the newest turns in full, as many as fit.
    fn newest(&self, session: &str, budget: u32) -> Result<Assembled, MemoryError> {
        self.finish_levels(session)?;
        self.read(|reader| {
            let connection = &reader.connection;
            let session = find(connection, session)?;
            let mut metrics = Vec::new();
            columns::read(connection, session.id, 1, session.turns, &mut metrics)?;
            let mut assembled = Assembled {
                planned: session.turns,
                ..Assembled::default()
            };
            let mut left = budget;
            for (number, metrics) in (1..=session.turns).rev().zip(metrics.iter().rev()) {
                let Some(rest) = left.checked_sub(cost_alone(number, metrics, Level::Raw)) else {
                    break;
                };
                (left, assembled.planned) = (rest, number - 1);
            }
            assembled.append(connection, &session, &metrics)?;
            Ok(assembled)
        })
    }
}

/// A plan and its rendered text, as stored in `memory_gradients`.
struct Pin {
    planned: u32,
    reserve: u32,
    bands: Vec<Band>,
    text: String,
}

impl Pin {
    /// Reads the stored plan for this session, budget and these shares. A plan that cannot be
    /// parsed counts as none.
    fn read(
        connection: &Connection,
        session: i64,
        gradient: &Gradient,
    ) -> Result<Option<Self>, MemoryError> {
        let sql = "SELECT planned, reserve, bands, opened(text) FROM memory_gradients
             WHERE session = ?1 AND budget = ?2 AND shares = ?3";
        let key = params![session, gradient.budget, shares(gradient)];
        let found: Option<(u32, u32, String, String)> =
            row(connection, sql, key, |row| row.try_into())?;
        Ok(found.and_then(|(planned, reserve, bands, text)| {
            let bands = unfold(&bands)?;
            Some(Self {
                planned,
                reserve,
                bands,
                text,
            })
        }))
    }

    fn write(
        &self,
        connection: &Connection,
        session: i64,
        gradient: &Gradient,
    ) -> Result<(), MemoryError> {
        let Gradient { budget, .. } = gradient;
        let (shares, bands) = (shares(gradient), fold(&self.bands));
        execute(
            connection,
            "INSERT OR REPLACE INTO memory_gradients VALUES (?1, ?2, ?3, ?4, ?5, ?6, sealed(?7))",
            params![
                session,
                budget,
                shares,
                self.planned,
                self.reserve,
                bands,
                self.text
            ],
        )?;
        Ok(())
    }
}

/// Formats the shares of the bands as a database key: `40/16/30/14`.
fn shares(gradient: &Gradient) -> String {
    gradient.bands.map(|share| share.to_string()).join("/")
}

/// Formats bands for the database: first and last turn, level, era flag and tokens of each.
fn fold(bands: &[Band]) -> String {
    let band = |band: &Band| {
        let Span { first, last, level } = band.span;
        let (era, tokens) = (u8::from(band.era), band.tokens);
        format!("{first}-{last}{}{era}{tokens}", level.letter())
    };
    bands.iter().map(band).collect::<Vec<_>>().join(" ")
}

/// Parses what `format_bands` wrote.
fn unfold(line: &str) -> Option<Vec<Band>> {
    let band = |text: &str| {
        let at = text.find(|c: char| c.is_ascii_uppercase())?;
        let (first, last) = text[..at].split_once('-')?;
        let level = text.get(at..at + 1)?.parse().ok()?;
        Some(Band {
            span: Span::new(first.parse().ok()?, last.parse().ok()?, level),
            era: text.get(at + 1..at + 2)? == "1",
            tokens: text.get(at + 2..)?.parse().ok()?,
        })
    };
    line.split_whitespace().map(band).collect()
}

/// An assembled history, the new plan if one was made, and the id of the session.
type Fresh = (Assembled, Option<Pin>, i64);

/// Renders the stored plan if it is of the current ten turns, else makes a new one. A turn that
/// does not fit into the reserve causes a new plan early.
fn assembled(
    connection: &Connection,
    name: &str,
    gradient: &Gradient,
) -> Result<Fresh, MemoryError> {
    let session = find(connection, name)?;
    let turns = session.turns;
    let pin = Pin::read(connection, session.id, gradient)?;
    let pin = pin.filter(|pin| pin.planned <= turns && pin.planned / PERIOD == turns / PERIOD);
    let mut metrics = Vec::new();
    let (mut new_pin, mut assembled) = (None, Assembled::default());
    match pin {
        Some(pin) => {
            // The metrics of turns that the pinned plan covers are not needed, so they stay empty.
            metrics.resize(pin.planned as usize, Numbers::default());
            columns::read(connection, session.id, pin.planned + 1, turns, &mut metrics)?;
            assembled = Assembled::from_pin(&pin);
        }
        None => {
            columns::read(connection, session.id, 1, turns, &mut metrics)?;
            let planned = turns / PERIOD * PERIOD;
            new_pin = Some(assembled.plan(connection, &session, &metrics, planned, gradient)?);
        }
    }
    while let Some(next) = assembled.first_too_large(&metrics, gradient.budget) {
        if metrics.first() == Some(&Numbers::default()) {
            metrics.clear();
            columns::read(connection, session.id, 1, turns, &mut metrics)?;
        }
        new_pin = Some(assembled.plan(connection, &session, &metrics, next, gradient)?);
    }
    assembled.append(connection, &session, &metrics)?;
    Ok((assembled, new_pin, session.id))
}

impl Assembled {
    fn from_pin(pin: &Pin) -> Self {
        Self {
            text: pin.text.clone(),
            bands: pin.bands.clone(),
            tokens: pin.bands.iter().map(|band| band.tokens).sum(),
            reserve: pin.reserve,
            planned: pin.planned,
            pinned: pin.text.len(),
        }
    }

    /// Plans the first `planned` turns, renders them, and replaces `self` by the result.
    fn plan(
        &mut self,
        connection: &Connection,
        session: &Session,
        metrics: &[Numbers],
        planned: u32,
        gradient: &Gradient,
    ) -> Result<Pin, MemoryError> {
        let eras = EraTokens::read(connection, session.id)?;
        let Plan { bands, reserve, .. } = plan(&metrics[..planned as usize], gradient, &eras);
        let mut text = String::new();
        for band in &bands {
            tell(connection, session, band, &mut text)?;
        }
        let pin = Pin {
            planned,
            reserve,
            bands,
            text,
        };
        *self = Self::from_pin(&pin);
        Ok(pin)
    }

    /// Returns the first turn after the plan that exceeds the budget in full.
    fn first_too_large(&self, metrics: &[Numbers], budget: u32) -> Option<u32> {
        let mut tokens = self.tokens;
        let overflowing = after(self.planned, metrics).find(|band| {
            tokens += band.tokens;
            tokens > budget
        });
        overflowing.map(|band| band.span.first)
    }

    /// Renders the turns after the plan in full.
    fn append(
        &mut self,
        connection: &Connection,
        session: &Session,
        metrics: &[Numbers],
    ) -> Result<(), MemoryError> {
        for band in after(self.planned, metrics) {
            tell(connection, session, &band, &mut self.text)?;
            self.tokens += band.tokens;
            self.reserve = self.reserve.saturating_sub(band.tokens);
            self.bands.push(band);
        }
        Ok(())
    }
}

/// Returns the turns after the plan, each as a raw band.
fn after(planned: u32, metrics: &[Numbers]) -> impl Iterator<Item = Band> {
    (planned + 1..)
        .zip(&metrics[planned as usize..])
        .map(|(number, metrics)| {
            let tokens = cost_alone(number, metrics, Level::Raw);
            Band::new(Span::one(number, Level::Raw), tokens)
        })
}

/// Renders a band with its tags.
fn tell(
    connection: &Connection,
    session: &Session,
    band: &Band,
    out: &mut String,
) -> Result<(), MemoryError> {
    let Span { first, last, level } = band.span;
    let text = match level {
        Level::Raw => {
            let turn = stored(connection, session.id, first)?;
            turn.map(|turn| String::from_utf8_lossy(&turn.raw).into_owned())
                .unwrap_or_default()
        }
        _ if band.era => eras::text(connection, session.id, band.span)?,
        Level::Smoothed => level_text(connection, session.id, first, level)?.unwrap_or_default(),
        Level::Compressed | Level::Tiny => {
            let sql = format!(
                "SELECT id, opened({}) FROM memory_levels WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
                level.word()
            );
            let ids = params![turn_id(session.id, first), turn_id(session.id, last)];
            let texts: Vec<(i64, String)> = rows(connection, &sql, ids, |row| row.try_into())?;
            let texts = texts.iter().filter(|(_, text)| !text.is_empty());
            let lines = texts.map(|(id, text)| format!("{}: {text}", *id as u32));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    band.span.wrap(&escape(&text), out);
    Ok(())
}
