//! The gradient as text: what a prompt has of a session.

use rusqlite::{Connection, params};

use crate::columns::{self, Numbers};
use crate::eras::{self, EraTokens};
use crate::gradient::{Band, Gradient, PERIOD, Plan, cost_alone, plan};
use crate::level::{Level, Span, escape};
use crate::levels::level_text;
use crate::store::{Session, execute, find, row, rows, stored, turn_id};
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
            let connection = &reader.connection;
            let session = find(connection, session)?;
            let mut numbers = Vec::new();
            columns::read(connection, session.id, 1, session.turns, &mut numbers)?;
            let mut assembled = Assembled {
                planned: session.turns,
                ..Assembled::default()
            };
            let mut left = budget;
            for (number, numbers) in (1..=session.turns).rev().zip(numbers.iter().rev()) {
                let Some(rest) = left.checked_sub(cost_alone(number, numbers, Level::Raw)) else {
                    break;
                };
                (left, assembled.planned) = (rest, number - 1);
            }
            assembled.append(connection, &session, &numbers)?;
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

fn shares(gradient: &Gradient) -> String {
    gradient.bands.map(|share| share.to_string()).join("/")
}

/// Bands as one line of numbers.
fn fold(bands: &[Band]) -> String {
    let band = |band: &Band| {
        let Span { first, last, level } = band.span;
        let (era, tokens) = (u8::from(band.era), band.tokens);
        format!("{first}-{last}{}{era}{tokens}", level.letter())
    };
    bands.iter().map(band).collect::<Vec<_>>().join(" ")
}

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
            // The turns a pinned plan has told already are not read.
            numbers.resize(pin.planned as usize, Numbers::default());
            columns::read(connection, session.id, pin.planned + 1, turns, &mut numbers)?;
            assembled = Assembled::from_pin(&pin);
        }
        None => {
            columns::read(connection, session.id, 1, turns, &mut numbers)?;
            let planned = turns / PERIOD * PERIOD;
            fresh = Some(assembled.plan(connection, &session, &numbers, planned, gradient)?);
        }
    }
    while let Some(next) = assembled.first_too_large(&numbers, gradient.budget) {
        if numbers.first() == Some(&Numbers::default()) {
            numbers.clear();
            columns::read(connection, session.id, 1, turns, &mut numbers)?;
        }
        fresh = Some(assembled.plan(connection, &session, &numbers, next, gradient)?);
    }
    assembled.append(connection, &session, &numbers)?;
    Ok((assembled, fresh, session.id))
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

    /// The first turn that does not fit behind the plan.
    fn first_too_large(&self, numbers: &[Numbers], budget: u32) -> Option<u32> {
        let mut tokens = self.tokens;
        let large = after(self.planned, numbers).find(|band| {
            tokens += band.tokens;
            tokens > budget
        });
        large.map(|band| band.span.first)
    }

    fn append(
        &mut self,
        connection: &Connection,
        session: &Session,
        numbers: &[Numbers],
    ) -> Result<(), MemoryError> {
        for band in after(self.planned, numbers) {
            tell(connection, session, &band, &mut self.text)?;
            self.tokens += band.tokens;
            self.reserve = self.reserve.saturating_sub(band.tokens);
            self.bands.push(band);
        }
        Ok(())
    }
}

/// The turns after the planned ones, raw.
fn after(planned: u32, numbers: &[Numbers]) -> impl Iterator<Item = Band> {
    (planned + 1..)
        .zip(&numbers[planned as usize..])
        .map(|(number, numbers)| {
            let tokens = cost_alone(number, numbers, Level::Raw);
            Band::new(Span::one(number, Level::Raw), tokens)
        })
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
        Level::Smoothed => level_text(connection, session.id, first, level)?.unwrap_or_default(),
        Level::Compressed | Level::Tiny => {
            let sql = format!(
                "SELECT id, opened({}) FROM memory_levels WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
                level.word()
            );
            let ids = params![turn_id(session.id, first), turn_id(session.id, last)];
            let texts: Vec<(i64, String)> = rows(connection, &sql, ids, |row| row.try_into())?;
            let told = texts.iter().filter(|(_, text)| !text.is_empty());
            let lines = told.map(|(id, text)| format!("{}: {text}", *id as u32));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    band.span.wrap(&escape(&text), out);
    Ok(())
}
