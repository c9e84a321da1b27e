//! Puts the calls of sentry.rs into a compiled template. Instructions are only replaced by, or
//! surrounded with, ones that leave the same stack behind; jumps are moved along.

use minijinja::machinery::{Instruction, Instructions};

use minijinja::Error;

use crate::sentry::{self, CHARGE, GUARD, GUARD_STORED, ITEM, MAP, SLICE};

fn call(name: &'static str, arguments: u16) -> Instruction<'static> {
    Instruction::CallFunction(name, Some(arguments))
}

/// May the value on top of the stack be large? `previous` put it there.
fn loads_little(previous: Option<&Instruction>) -> bool {
    matches!(
        previous,
        Some(Instruction::LoadConst(_) | Instruction::BuildKwargs(_) | Instruction::MergeKwargs(_))
    )
}

/// What has to run before `instruction`. These read what is on top of the stack: comparisons read
/// no more than the smaller side.
fn before<'s>(
    instruction: &Instruction<'s>,
    previous: Option<&Instruction<'s>>,
) -> Vec<Instruction<'s>> {
    use Instruction::*;
    match instruction {
        Eq
        | Ne
        | Gt
        | Gte
        | Lt
        | Lte
        | In
        | CompareAndPreserve(_)
        | GetItem
        | PerformTest(..)
        | CallMethod("changed", _)
            if !loads_little(previous) =>
        {
            vec![call(CHARGE, 1)]
        }
        // Stack: value, namespace.
        SetAttr(_) => vec![Swap, call(GUARD_STORED, 1), Swap],
        _ => vec![],
    }
}

fn replacement<'s>(instruction: &Instruction<'s>) -> Instruction<'s> {
    match instruction {
        Instruction::Slice => call(SLICE, 4),
        Instruction::GetItem => call(ITEM, 2),
        Instruction::BuildMap(pairs) => match u16::try_from(*pairs * 2) {
            Ok(arguments) => call(MAP, arguments),
            Err(_) => instruction.clone(),
        },
        other => other.clone(),
    }
}

/// Can the instruction leave a container that did not exist before?
fn makes_container(instruction: &Instruction) -> bool {
    use Instruction::*;
    matches!(
        instruction,
        BuildList(_)
            | BuildTuple(_)
            | BuildMap(_)
            | Add
            | Mul
            | ApplyFilter(..)
            | CallFunction(..)
            | CallMethod(..)
            | CallObject(_)
    )
}

fn relocate(instruction: &mut Instruction, places: &[u32]) {
    use Instruction::*;
    match instruction {
        Iterate(target)
        | Jump(target)
        | JumpIfFalse(target)
        | JumpIfFalseOrPop(target)
        | JumpIfTrueOrPop(target)
        | BuildMacro(_, target, _) => {
            *target = places[*target as usize];
        }
        _ => {}
    }
}

pub fn rewrite<'s>(old: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let mut code: Vec<(Instruction<'s>, u16)> = Vec::new();
    let mut places: Vec<u32> = Vec::new(); // old index to new
    let mut index = 0;
    while let Some(instruction) = old.get(index) {
        let line = old.get_line(index).unwrap_or(0);
        let line = u16::try_from(line).unwrap_or(u16::MAX);
        let previous = index.checked_sub(1).and_then(|at| old.get(at));
        if let Instruction::LoadConst(value) = instruction {
            sentry::check_constant(value)?;
        }
        places.push(code.len() as u32);
        for added in before(instruction, previous) {
            code.push((added, line));
        }
        code.push((replacement(instruction), line));
        if makes_container(instruction) {
            code.push((call(GUARD, 1), line));
        }
        index += 1;
    }
    places.push(code.len() as u32);
    let mut new = Instructions::new(old.name(), old.source());
    for (mut instruction, line) in code {
        // Only what came from the template holds a target.
        relocate(&mut instruction, &places);
        new.add_with_line(instruction, line);
    }
    Ok(new)
}
