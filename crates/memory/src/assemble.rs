//! The gradient as text: what a prompt has of a session.

use std::fmt::Write;

use rusqlite::{Connection, OptionalExtension, params};

use crate::columns::{self, Numbers};
use crate::eras::{self, EraTokens};
use crate::gradient::{Band, Gradient, PERIOD, Plan, cost_alone, plan};
use crate::level::{Level, Span, escape};
use crate::store::{Session, find, stored, turn_id};
use crate::{Memory, MemoryError};

/// How much of a session a prompt gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Strategy {
    /// Every turn, the older the shorter.
    Gradient(Gradient),
    /// The newest turns in full, as many as fit into so many tokens; the others not at all.
    Regular(u32),
    /// Nothing of it.
    OneShot,
}

/// Whether what was assembled stays as it is until the next plan, whatever happens to the levels meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It does: a prompt's beginning must not change.
    Pinned,
    /// Nothing is written: somebody only looks.
    Nothing,
}

/// A session within a budget.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Assembled {
    /// Oldest first, each tag on a line of its own.
    pub text: String,
    /// How the turns are told, oldest first, without gaps.
    pub bands: Vec<Band>,
    /// Tokens of the text, at most.
    pub tokens: u32,
    /// Room kept for the turns before the next plan.
    pub reserve: u32,
    /// Turns that were there when it was planned; those after it are appended.
    pub planned: u32,
    /// Bytes of the text that tell of those.
    pub pinned: usize,
}

impl Memory {
    /// What a prompt has of a session. Between one multiple of ten turns and the next the text only grows at its end.
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
        let (assembled, fresh, id) =
            self.read(|reader| assembled(&reader.connection, session, &gradient))?;
        if let (Some(pin), Keep::Pinned) = (fresh, keep) {
            self.write(|connection| pin.write(connection, id, &gradient))?;
        }
        Ok(assembled)
    }

    fn newest(&self, session: &str, budget: u32) -> Result<Assembled, MemoryError> {
        self.finish_levels(session)?;
        self.read(|reader| {
            let session = find(&reader.connection, session)?;
            let mut numbers = Vec::new();
            columns::read(
                &reader.connection,
                session.id,
                1,
                session.turns,
                &mut numbers,
            )?;
            let mut left = budget;
            let mut first = session.turns + 1;
            for (number, numbers) in (1..=session.turns).rev().zip(numbers.iter().rev()) {
                let Some(rest) = left.checked_sub(cost_alone(number, numbers, Level::Raw)) else {
                    break;
                };
                (left, first) = (rest, number);
            }
            let mut assembled = Assembled {
                planned: first - 1,
                ..Assembled::default()
            };
            assembled.append(&reader.connection, &session, &numbers, session.turns)?;
            Ok(assembled)
        })
    }
}

/// A plan's text, as it was when it was planned.
struct Pin {
    planned: u32,
    reserve: u32,
    bands: Vec<Band>,
    text: String,
}

impl Pin {
    fn read(
        connection: &Connection,
        session: i64,
        gradient: &Gradient,
    ) -> Result<Option<Self>, MemoryError> {
        let mut read = connection.prepare_cached(
            "SELECT planned, reserve, bands, opened(text) FROM memory_gradients WHERE session = ?1 AND budget = ?2 AND shares = ?3",
        )?;
        let found = read.query_row(params![session, gradient.budget, shares(gradient)], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get::<_, String>(2)?,
                row.get(3)?,
            ))
        });
        let Some((planned, reserve, bands, text)) = found.optional()? else {
            return Ok(None);
        };
        Ok(unfold(&bands).map(|bands| Self {
            planned,
            reserve,
            bands,
            text,
        }))
    }

    fn write(
        &self,
        connection: &Connection,
        session: i64,
        gradient: &Gradient,
    ) -> Result<(), MemoryError> {
        connection
            .prepare_cached("INSERT OR REPLACE INTO memory_gradients VALUES (?1, ?2, ?3, ?4, ?5, ?6, sealed(?7))")?
            .execute(params![
                session,
                gradient.budget,
                shares(gradient),
                self.planned,
                self.reserve,
                fold(&self.bands),
                self.text
            ])?;
        Ok(())
    }
}

fn shares(gradient: &Gradient) -> String {
    gradient.bands.map(|share| share.to_string()).join("/")
}

/// Bands as one line of numbers.
fn fold(bands: &[Band]) -> String {
    let band = |band: &Band| {
        format!(
            "{}-{}{}{}{}",
            band.span.first,
            band.span.last,
            band.span.level.letter(),
            u8::from(band.era),
            band.tokens
        )
    };
    bands.iter().map(band).collect::<Vec<_>>().join(" ")
}

fn unfold(line: &str) -> Option<Vec<Band>> {
    let band = |text: &str| {
        let at = text.find(|c: char| c.is_ascii_uppercase())?;
        let (first, last) = text[..at].split_once('-')?;
        let level = text.get(at..at + 1)?.parse().ok()?;
        let span = Span {
            first: first.parse().ok()?,
            last: last.parse().ok()?,
            level,
        };
        Some(Band {
            span,
            era: text.get(at + 1..at + 2)? == "1",
            tokens: text.get(at + 2..)?.parse().ok()?,
        })
    };
    line.split_whitespace().map(band).collect()
}

type Fresh = (Assembled, Option<Pin>, i64);

/// Goes on from the plan there is, if it is of these ten turns, else makes one. A turn too large for the room that was
/// kept makes another before its time.
fn assembled(
    connection: &Connection,
    name: &str,
    gradient: &Gradient,
) -> Result<Fresh, MemoryError> {
    let session = find(connection, name)?;
    let turns = session.turns;
    let pin = Pin::read(connection, session.id, gradient)?;
    let pin = pin.filter(|pin| pin.planned <= turns && pin.planned / PERIOD == turns / PERIOD);
    let mut numbers = Vec::new();
    let (mut fresh, mut assembled) = (None, Assembled::default());
    match pin {
        Some(pin) => {
            numbers.resize(pin.planned as usize, NOT_READ);
            columns::read(connection, session.id, pin.planned + 1, turns, &mut numbers)?;
            assembled = Assembled::from_pin(&pin);
        }
        None => {
            columns::read(connection, session.id, 1, turns, &mut numbers)?;
            let planned = turns / PERIOD * PERIOD;
            fresh = Some(assembled.plan(connection, &session, &numbers, planned, gradient)?);
        }
    }
    while assembled.planned_through(turns, &numbers, gradient.budget) < turns {
        let next = assembled.planned_through(turns, &numbers, gradient.budget) + 1;
        if numbers.first() == Some(&NOT_READ) {
            numbers.clear();
            columns::read(connection, session.id, 1, turns, &mut numbers)?;
        }
        fresh = Some(assembled.plan(connection, &session, &numbers, next, gradient)?);
    }
    assembled.append(connection, &session, &numbers, turns)?;
    Ok((assembled, fresh, session.id))
}

/// Stands for the turns a pinned plan has told already.
const NOT_READ: Numbers = Numbers {
    words: 0,
    speaker: 0,
    role: columns::Role::Other,
    tokens: [0; 4],
};

impl Assembled {
    fn from_pin(pin: &Pin) -> Self {
        let tokens = pin.bands.iter().map(|band| band.tokens).sum();
        let (text, bands) = (pin.text.clone(), pin.bands.clone());
        let pinned = text.len();
        Self {
            text,
            bands,
            tokens,
            reserve: pin.reserve,
            planned: pin.planned,
            pinned,
        }
    }

    fn plan(
        &mut self,
        connection: &Connection,
        session: &Session,
        numbers: &[Numbers],
        planned: u32,
        gradient: &Gradient,
    ) -> Result<Pin, MemoryError> {
        let eras = EraTokens::read(connection, session.id)?;
        let Plan { bands, reserve, .. } = plan(&numbers[..planned as usize], gradient, &eras);
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

    /// The last turn that fits behind the plan, raw.
    fn planned_through(&self, turns: u32, numbers: &[Numbers], budget: u32) -> u32 {
        let mut tokens = self.tokens;
        for number in self.planned + 1..=turns {
            tokens += cost_alone(number, &numbers[number as usize - 1], Level::Raw);
            if tokens > budget {
                return number - 1;
            }
        }
        turns
    }

    fn append(
        &mut self,
        connection: &Connection,
        session: &Session,
        numbers: &[Numbers],
        turns: u32,
    ) -> Result<(), MemoryError> {
        for number in self.planned + 1..=turns {
            let tokens = cost_alone(number, &numbers[number as usize - 1], Level::Raw);
            let band = Band {
                span: Span::one(number, Level::Raw),
                era: false,
                tokens,
            };
            tell(connection, session, &band, &mut self.text)?;
            self.tokens += tokens;
            self.reserve = self.reserve.saturating_sub(tokens);
            self.bands.push(band);
        }
        Ok(())
    }
}

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
        Level::Smoothed => {
            crate::levels::level_text(connection, session.id, first, level)?.unwrap_or_default()
        }
        _ => {
            let column = if level == Level::Tiny {
                "tiny"
            } else {
                "compressed"
            };
            let sql = format!(
                "SELECT id, opened({column}) FROM memory_levels WHERE id BETWEEN ?1 AND ?2 ORDER BY id"
            );
            let mut read = connection.prepare_cached(&sql)?;
            let mut rows = read.query(params![
                turn_id(session.id, first),
                turn_id(session.id, last)
            ])?;
            let mut lines = String::new();
            while let Some(row) = rows.next()? {
                let (id, text): (i64, String) = (row.get(0)?, row.get(1)?);
                if !text.is_empty() {
                    let separator = if lines.is_empty() { "" } else { "\n" };
                    // Writing to a string cannot fail.
                    let _ = write!(lines, "{separator}{}: {}", id as u32, text);
                }
            }
            lines
        }
    };
    band.span.wrap(&escape(&text), out);
    Ok(())
}
