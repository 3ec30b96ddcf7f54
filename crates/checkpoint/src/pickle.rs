//! An interpreter for the pickle in a PyTorch file, which describes its tensors.
//!
//! A pickle is a program for a stack machine that may import and call anything. This interpreter runs nothing: it knows the
//! few calls that make tensors, and passes over all others.
//!
//! Values are kept in one list and refer to each other by index, and tensors are described by the tuples of their arguments
//! until they are requested. Deep nesting, values that contain themselves, and values that are repeated a million times
//! therefore cost no more than the bytes that describe them. What remains is bounded by a [`Room`].

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::room::{NoRoom, Room};

/// The index of a value.
type Id = u32;

/// Tensors of PyTorch have at most 64 dimensions.
pub(crate) const MOST_DIMENSIONS: usize = 64;

/// The longest name of an import, an entry of the archive or a key of a dictionary that is searched.
const LONGEST_NAME: usize = 255;

/// Dictionaries nested deeper than this are not searched for weights.
const DEEPEST_KEY: u8 = 6;

/// A value, in as much detail as weights need.
#[derive(Debug)]
enum Value<'a> {
    Int(i64),
    Text(&'a str),
    /// A range of [`Pickle::items`].
    Tuple {
        start: u32,
        count: u32,
    },
    /// Its keys and values are in [`Pickle::entries`].
    Dict,
    Global(Global<'a>),
    /// The tuple `('storage', class, key, device, count)`.
    Storage(Id),
    /// The tuple `(storage, offset, size, stride, requires_grad, backward_hooks, ...)`, with the dtype as the seventh item if
    /// `typed`; older versions have it in the storage.
    Tensor {
        arguments: Id,
        typed: bool,
    },
    /// A tensor of a kind that weights cannot have, such as a sparse one: the function that makes it.
    OtherTensor(Id),
    /// Anything else: none, truth values, floats, lists, bytes, settings.
    Inert,
}

/// What an import stands for.
#[derive(Clone, Copy, Debug)]
enum Global<'a> {
    Dict,
    RebuildTensor {
        typed: bool,
    },
    RebuildParameter,
    RebuildFromType,
    /// A storage class, such as `FloatStorage`.
    Storage(&'a str),
    /// A dtype, such as `float32`.
    Dtype(&'a str),
    /// Harmless, and often saved with weights.
    Harmless,
    /// Module and name: two texts.
    Other(Id, Id),
}

/// A view into the data of a storage. Offset and strides are in elements.
#[derive(Debug)]
pub(crate) struct PickledTensor<'a> {
    /// The entry of the archive.
    pub(crate) key: &'a str,
    /// PyTorch's name of the dtype, such as `FloatStorage` or `float32`.
    pub(crate) class: &'a str,
    /// Elements in the storage; of a tensor that names its dtype itself, bytes.
    pub(crate) count: usize,
    /// Whether the tensor names its dtype itself.
    pub(crate) typed: bool,
    pub(crate) offset: usize,
    pub(crate) shape: Box<[usize]>,
    pub(crate) strides: Box<[usize]>,
}

/// A value of a dictionary that is a tensor.
#[derive(Debug)]
pub(crate) enum Found<'a> {
    Tensor(PickledTensor<'a>),
    /// Made by a function that does not make weights.
    Other(String),
}

/// A dictionary that is reached from the outermost one through dictionaries.
#[derive(Debug)]
pub(crate) struct Dictionary<'a> {
    id: Id,
    /// The index of the dictionary that holds it, and its key there. The outermost one is its own parent.
    parent: u32,
    name: &'a str,
    depth: u8,
}

/// Why a pickle cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PickleError {
    #[error("its pickle ends too early")]
    Ended,
    #[error("its pickle holds the instruction {0:#04x}, which weights do not need")]
    Instruction(u8),
    #[error("its pickle is malformed: {0}")]
    Malformed(&'static str),
    #[error("its pickle describes more than a file of its size can hold")]
    NoRoom,
}

impl From<NoRoom> for PickleError {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

type Result<T> = std::result::Result<T, PickleError>;

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    /// Of all tuples.
    items: Vec<Id>,
    /// Of all dictionaries, in order of the dictionary: dictionary, key, value.
    entries: Vec<(Id, Id, Id)>,
    root: Id,
    passed_over: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle of protocol 2 or later.
    pub(crate) fn read(bytes: &'a [u8], room: &mut Room) -> Result<Self> {
        let pickle = Self {
            // Inert values and empty tuples are many, and each is the same.
            values: vec![Value::Inert, Value::Tuple { start: 0, count: 0 }],
            items: Vec::new(),
            entries: Vec::new(),
            root: INERT,
            passed_over: BTreeSet::new(),
        };
        let mut machine = Machine { bytes, pickle, stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), room };
        while machine.step()? {}
        let root = machine.pop()?;
        let mut pickle = Self { root, ..machine.pickle };
        // Later entries replace earlier ones of the same key, so the order within a dictionary stays.
        pickle.entries.sort_by_key(|&(dict, ..)| dict);
        Ok(pickle)
    }

    /// Unknown imports that were called.
    pub(crate) fn passed_over(&self) -> Vec<String> {
        self.passed_over.iter().map(|(module, name)| format!("{module}.{name}")).collect()
    }

    /// The outermost dictionary, if there is one, and every dictionary that is reached from it through dictionaries.
    pub(crate) fn dictionaries(&self, room: &mut Room) -> Result<Vec<Dictionary<'a>>> {
        let mut found = Vec::new();
        if !matches!(self.value(self.root), Value::Dict) {
            return Ok(found);
        }
        room.take(self.values.len())?;
        let mut seen = vec![false; self.values.len()];
        seen[self.root as usize] = true;
        room.push(&mut found, Dictionary { id: self.root, parent: 0, name: "", depth: 0 })?;
        let mut next = 0;
        while let Some(&Dictionary { id, depth, .. }) = found.get(next) {
            for &(_, name, value) in self.entries(id) {
                if let (Value::Text(name), Value::Dict) = (self.value(name), self.value(value))
                    && depth < DEEPEST_KEY
                    && name.len() <= LONGEST_NAME
                    && !std::mem::replace(&mut seen[value as usize], true)
                {
                    room.push(&mut found, Dictionary { id: value, parent: next as u32, name, depth: depth + 1 })?;
                }
            }
            next += 1;
        }
        Ok(found)
    }

    /// The tensors in a dictionary: their names there, and what [`tensor`](Self::tensor) takes.
    pub(crate) fn tensors(&self, dictionary: &Dictionary) -> impl Iterator<Item = (&'a str, Id)> {
        self.entries(dictionary.id).iter().filter_map(|&(_, name, value)| match (self.value(name), self.value(value)) {
            (&Value::Text(name), Value::Tensor { .. } | Value::OtherTensor(_)) => Some((name, value)),
            _ => None,
        })
    }

    /// A tensor that [`tensors`](Self::tensors) names.
    pub(crate) fn tensor(&self, id: Id) -> Result<Found<'a>> {
        let (arguments, typed) = match *self.value(id) {
            Value::Tensor { arguments, typed } => (arguments, typed),
            Value::OtherTensor(function) => return Ok(Found::Other(self.describe(function))),
            _ => return Err(PickleError::Malformed("a tensor is not described as PyTorch does")),
        };
        let dtype = self.items(arguments).get(6).map(|&dtype| self.value(dtype));
        if let [storage, offset, shape, strides, ..] = *self.items(arguments)
            && let Value::Storage(storage) = *self.value(storage)
            && let [_, class, key, _, count] = *self.items(storage)
            && let (&Value::Global(Global::Storage(class)), &Value::Text(key)) = (self.value(class), self.value(key))
        {
            let class = match dtype {
                Some(&Value::Global(Global::Dtype(dtype))) if typed => dtype,
                _ if typed => return Ok(Found::Other("an unknown function".into())),
                _ => class,
            };
            let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
            if shape.len() == strides.len() {
                let (count, offset) = (self.size(count)?, self.size(offset)?);
                return Ok(Found::Tensor(PickledTensor { key, class, count, typed, offset, shape, strides }));
            }
        }
        Err(PickleError::Malformed("a tensor is not described as PyTorch does"))
    }

    fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    fn items(&self, tuple: Id) -> &[Id] {
        match *self.value(tuple) {
            Value::Tuple { start, count } => &self.items[start as usize..][..count as usize],
            _ => &[],
        }
    }

    fn entries(&self, dict: Id) -> &[(Id, Id, Id)] {
        let start = self.entries.partition_point(|&(other, ..)| other < dict);
        let rest = &self.entries[start..];
        &rest[..rest.partition_point(|&(other, ..)| other == dict)]
    }

    /// The name of a function.
    fn describe(&self, function: Id) -> String {
        if let Value::Global(Global::Other(module, name)) = *self.value(function)
            && let (Value::Text(module), Value::Text(name)) = (self.value(module), self.value(name))
        {
            return format!("{module}.{name}");
        }
        "an unknown function".into()
    }

    fn sizes(&self, tuple: Id) -> Result<Box<[usize]>> {
        let items = self.items(tuple);
        if items.len() > MOST_DIMENSIONS {
            return Err(PickleError::Malformed("a tensor has too many dimensions"));
        }
        items.iter().map(|&id| self.size(id)).collect()
    }

    fn size(&self, id: Id) -> Result<usize> {
        match *self.value(id) {
            Value::Int(size) => usize::try_from(size).map_err(|_| PickleError::Malformed("a size is negative")),
            _ => Err(PickleError::Malformed("a size is not a whole number")),
        }
    }
}

impl Dictionary<'_> {
    /// The keys that lead to a dictionary of a list, separated by dots.
    pub(crate) fn key(all: &[Self], index: usize) -> String {
        let mut names = VecDeque::new();
        let mut at = &all[index];
        while at.depth > 0 {
            names.push_front(at.name);
            at = &all[at.parent as usize];
        }
        names.make_contiguous().join(".")
    }
}

struct Machine<'a, 'r> {
    /// What is still to be read.
    bytes: &'a [u8],
    pickle: Pickle<'a>,
    stack: Vec<Id>,
    /// Heights of the stack where lists of items begin.
    marks: Vec<u32>,
    memo: HashMap<u32, Id>,
    room: &'r mut Room,
}

/// The value of everything that weights do not need.
const INERT: Id = 0;

/// The empty tuple.
const EMPTY: Id = 1;

/// Bytes that an entry of the memo takes, including the spare capacity of the map.
const MEMO_ENTRY: usize = 2 * (size_of::<(u32, Id)>() + 1);

/// Bytes that an import takes in the set of those passed over.
const PASSED_OVER: usize = 2 * size_of::<(&str, &str)>();

impl<'a> Machine<'a, '_> {
    /// Reads one instruction. Returns whether another follows.
    fn step(&mut self) -> Result<bool> {
        let [instruction] = self.array()?;
        match instruction {
            b'.' => return Ok(false),
            0x80 => drop(self.array::<1>()?), // PROTO
            0x95 => drop(self.array::<8>()?), // FRAME
            b'(' => self.room.push(&mut self.marks, self.stack.len() as u32)?,
            // NONE, NEWTRUE, NEWFALSE, EMPTY_LIST, EMPTY_SET
            b'N' | 0x88 | 0x89 | b']' | 0x8f => self.push_id(INERT)?,
            b'G' => {
                self.array::<8>()?;
                self.push_id(INERT)?;
            }
            b'K' | b'M' | b'J' | 0x8a | 0x8b => self.integer(instruction)?,
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, BINSTRING, SHORT_BINSTRING
            b'X' | 0x8c | 0x8d | b'T' | b'U' => {
                // Python's strings may hold what UTF-8 cannot; no tensor has such a name.
                match std::str::from_utf8(self.sized(instruction)?) {
                    Ok(text) => self.push(Value::Text(text))?,
                    Err(_) => self.push_id(INERT)?,
                }
            }
            // BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
            b'B' | b'C' | 0x8e | 0x96 => {
                self.sized(instruction)?;
                self.push_id(INERT)?;
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(instruction)?,
            b')' => self.push_id(EMPTY)?,
            0x85..=0x87 => {
                let start = self.height(usize::from(instruction - 0x84))?;
                self.tuple(start)?;
            }
            b't' => {
                let start = self.mark()?;
                self.tuple(start)?;
            }
            // LIST, FROZENSET
            b'l' | 0x91 => {
                let start = self.mark()?;
                self.stack.truncate(start);
                self.push_id(INERT)?;
            }
            b'}' => self.push(Value::Dict)?,
            b'd' => {
                let start = self.mark()?;
                let dict = self.add(Value::Dict)?;
                self.extend(dict, start)?;
                self.push_id(dict)?;
            }
            b's' | b'u' => {
                let start = if instruction == b's' { self.height(2)? } else { self.mark()? };
                let below = start.checked_sub(1).map(|top| self.stack[top]);
                self.extend(below.ok_or(EMPTY_STACK)?, start)?;
            }
            // APPENDS, ADDITEMS, POP_MARK; APPEND, BUILD, POP: weights do not need items of lists and attributes of objects.
            b'e' | 0x90 | b'1' => {
                let start = self.mark()?;
                self.stack.truncate(start);
            }
            b'a' | b'b' | b'0' => drop(self.pop()?),
            // DUP
            b'2' => {
                let top = self.pop()?;
                self.push_id(top)?;
                self.push_id(top)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = match known(module, name)? {
                    Some(known) => known,
                    None => Global::Other(self.add(Value::Text(module))?, self.add(Value::Text(name))?),
                };
                self.push(Value::Global(global))?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (&Value::Text(module_name), &Value::Text(own_name)) =
                    (self.pickle.value(module), self.pickle.value(name))
                else {
                    return Err(PickleError::Malformed("an import has no name"));
                };
                let global = known(module_name, own_name)?.unwrap_or(Global::Other(module, name));
                self.push(Value::Global(global))?;
            }
            b'Q' => {
                let id = self.pop()?;
                if self.is_storage(id) { self.push(Value::Storage(id))? } else { self.push_id(INERT)? }
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            // NEWOBJ_EX, with keyword arguments.
            0x92 => {
                let (_, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(callable, arguments)?;
            }
            other => return Err(PickleError::Instruction(other)),
        }
        Ok(true)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// Bytes that follow their count. The width of the count depends on the instruction.
    fn sized(&mut self, instruction: u8) -> Result<&'a [u8]> {
        let count = match instruction {
            0x8c | b'U' | b'C' => u8::from_le_bytes(self.array()?) as u64,
            0x8d | 0x8e | 0x96 => u64::from_le_bytes(self.array()?),
            _ => u32::from_le_bytes(self.array()?) as u64,
        };
        self.take(usize::try_from(count).map_err(|_| PickleError::Ended)?)
    }

    fn line(&mut self) -> Result<&'a str> {
        let end = self.bytes.iter().position(|&byte| byte == b'\n').ok_or(PickleError::Ended)?;
        let line = self.take(end)?;
        self.array::<1>()?;
        std::str::from_utf8(line).map_err(|_| PickleError::Malformed("the name of an import is not text"))
    }

    /// BININT1, BININT2, BININT, LONG1, LONG4. Integers of more than 64 bits are not part of tensors.
    fn integer(&mut self, instruction: u8) -> Result<()> {
        let value = match instruction {
            b'K' => Value::Int(u8::from_le_bytes(self.array()?).into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            _ => {
                let count = match instruction {
                    0x8a => u8::from_le_bytes(self.array()?) as usize,
                    _ => u32::from_le_bytes(self.array()?) as usize,
                };
                let digits = self.take(count)?;
                let negative = digits.last().is_some_and(|&byte| byte >= 0x80);
                let mut word = [if negative { 0xff } else { 0 }; 8];
                match word.get_mut(..count) {
                    Some(low) => {
                        low.copy_from_slice(digits);
                        Value::Int(i64::from_le_bytes(word))
                    }
                    None => Value::Inert,
                }
            }
        };
        self.push(value)
    }

    /// The instructions of PUT remember the top of the stack, those of GET push it again.
    fn memo(&mut self, instruction: u8) -> Result<()> {
        let key = match instruction {
            b'q' | b'h' => u8::from_le_bytes(self.array()?) as u32,
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(instruction, b'h' | b'j') {
            let id = self.memo.get(&key).copied();
            return self.push_id(id.ok_or(PickleError::Malformed("it refers to what was not remembered"))?);
        }
        let top = *self.stack.last().ok_or(EMPTY_STACK)?;
        if !self.memo.contains_key(&key) {
            self.room.take(MEMO_ENTRY)?;
        }
        self.memo.insert(key, top);
        Ok(())
    }

    fn add(&mut self, value: Value<'a>) -> Result<Id> {
        let id = Id::try_from(self.pickle.values.len()).map_err(|_| PickleError::NoRoom)?;
        self.room.push(&mut self.pickle.values, value)?;
        Ok(id)
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        let id = self.add(value)?;
        self.push_id(id)
    }

    fn push_id(&mut self, id: Id) -> Result<()> {
        Ok(self.room.push(&mut self.stack, id)?)
    }

    /// The height of the stack without its upper `count` values, none of which may lie below a mark.
    fn height(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0) as usize;
        self.stack.len().checked_sub(count).filter(|&height| height >= floor).ok_or(EMPTY_STACK)
    }

    fn pop(&mut self) -> Result<Id> {
        self.height(1)?;
        self.stack.pop().ok_or(EMPTY_STACK)
    }

    /// The height of the stack where the latest list of items begins.
    fn mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().ok_or(PickleError::Malformed("it ends a list that it did not begin"))?;
        Ok(mark as usize)
    }

    /// Replaces the values of the stack from `start` on by a tuple of them.
    fn tuple(&mut self, start: usize) -> Result<()> {
        let first = u32::try_from(self.pickle.items.len()).map_err(|_| PickleError::NoRoom)?;
        let items = self.stack.get(start..).ok_or(EMPTY_STACK)?;
        for &id in items {
            self.room.push(&mut self.pickle.items, id)?;
        }
        let count = items.len() as u32;
        self.stack.truncate(start);
        self.push(Value::Tuple { start: first, count })
    }

    /// Moves keys and values, in turn, from the stack to a dictionary.
    fn extend(&mut self, dict: Id, start: usize) -> Result<()> {
        let (pairs, rest) = self.stack.get(start..).ok_or(EMPTY_STACK)?.as_chunks();
        if !rest.is_empty() {
            return Err(PickleError::Malformed("a dictionary has a key without a value"));
        }
        if matches!(self.pickle.value(dict), Value::Dict) {
            for &[key, value] in pairs {
                self.room.push(&mut self.pickle.entries, (dict, key, value))?;
            }
        }
        self.stack.truncate(start);
        Ok(())
    }

    /// Whether a value is the persistent id of a storage.
    fn is_storage(&self, id: Id) -> bool {
        if let [_, class, key, _, _] = *self.pickle.items(id)
            && let (Value::Global(Global::Storage(_)), Value::Text(key)) =
                (self.pickle.value(class), self.pickle.value(key))
        {
            return key.len() <= LONGEST_NAME;
        }
        false
    }

    /// Pushes the result of a call, if weights need it. Nothing is called.
    fn call(&mut self, callable: Id, arguments: Id) -> Result<()> {
        let Value::Global(global) = *self.pickle.value(callable) else { return self.push_id(INERT) };
        let first = self.pickle.items(arguments).first().copied();
        let value = match (global, first) {
            (Global::Dict, _) => Value::Dict,
            (Global::RebuildTensor { typed }, _) => Value::Tensor { arguments, typed },
            // Both wrap a tensor: the first one that is made already, the second a call that makes it.
            (Global::RebuildParameter, Some(tensor)) => return self.push_id(tensor),
            (Global::RebuildFromType, Some(function)) => {
                match (self.pickle.value(function), self.pickle.items(arguments).get(2)) {
                    (&Value::Global(Global::RebuildTensor { typed }), Some(&arguments)) => {
                        Value::Tensor { arguments, typed }
                    }
                    _ => Value::OtherTensor(function),
                }
            }
            (Global::Other(module, name), _) => {
                let (&Value::Text(module), &Value::Text(name)) = (self.pickle.value(module), self.pickle.value(name))
                else {
                    return self.push_id(INERT);
                };
                if module == "torch._utils" && name.starts_with("_rebuild") {
                    Value::OtherTensor(callable)
                } else {
                    if !self.pickle.passed_over.contains(&(module, name)) {
                        self.room.take(PASSED_OVER + module.len() + name.len())?;
                        self.pickle.passed_over.insert((module, name));
                    }
                    // Classes that extend dictionaries get their items afterwards.
                    Value::Dict
                }
            }
            _ => return self.push_id(INERT),
        };
        self.push(value)
    }
}

const EMPTY_STACK: PickleError = PickleError::Malformed("its stack is empty");

/// What an import stands for. `None` for an unknown one, which is passed over when it is called.
fn known<'a>(module: &'a str, name: &'a str) -> Result<Option<Global<'a>>> {
    const DTYPES: [&str; 5] = ["float", "bfloat", "int", "uint", "complex"];
    if module.len() > LONGEST_NAME || name.len() > LONGEST_NAME {
        return Err(PickleError::Malformed("the name of an import is too long"));
    }
    Ok(Some(match (module, name) {
        ("collections", "OrderedDict" | "defaultdict" | "Counter") => Global::Dict,
        ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor { typed: false },
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensor { typed: true },
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Global::RebuildParameter,
        ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
        ("torch" | "torch.storage", class) if class.ends_with("Storage") => Global::Storage(class),
        ("torch", dtype) if dtype == "bool" || DTYPES.iter().any(|start| dtype.starts_with(start)) => {
            Global::Dtype(dtype)
        }
        ("torch.nn.parameter", "Parameter" | "Buffer")
        | ("torch", "Size" | "device" | "layout" | "strided" | "memory_format" | "contiguous_format")
        | ("torch.serialization", "_get_layout")
        | ("argparse", "Namespace")
        | ("_codecs", "encode")
        | ("datetime" | "pathlib", _)
        | ("numpy", "dtype" | "ndarray")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar" | "_reconstruct")
        | ("builtins" | "__builtin__", "set" | "frozenset" | "complex" | "bytearray" | "slice" | "range") => {
            Global::Harmless
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Pickle<'_>> {
        Pickle::read(bytes, &mut Room::of(bytes.len()))
    }

    fn groups(pickle: &Pickle) -> Vec<String> {
        let found = pickle.dictionaries(&mut Room::of(1 << 20)).unwrap();
        (0..found.len()).map(|index| Dictionary::key(&found, index)).collect()
    }

    #[test]
    fn deep_nesting_and_repetition_cost_no_more_than_their_bytes() {
        // A million tuples in each other, in a file that has room for them.
        let deep = [&b"\x80\x02)"[..], &vec![0x85; 1_000_000], b"."].concat();
        assert_eq!(Pickle::read(&deep, &mut Room::of(1 << 30)).unwrap().values.len(), 1_000_002);
        assert_eq!(read(&deep).unwrap_err(), PickleError::NoRoom);
        // A tuple of two references to the one before, forty times over: 2^40 values if they were copied.
        let doubling = [&b"\x80\x02)"[..], &b"q\x00h\x00\x86".repeat(40), b"."].concat();
        assert_eq!(read(&doubling).unwrap().values.len(), 42);
        // A dictionary that contains itself.
        let own = b"\x80\x02}q\x00\x8c\x05modelh\x00s.";
        let pickle = read(own).unwrap();
        assert_eq!(groups(&pickle), [""]);
        // Dictionaries of two references to the one before: each is searched once.
        let both = b"(\x8c\x01ah\x00\x8c\x01bh\x00dq\x00";
        let dicts = [&b"\x80\x02}q\x00"[..], &both.repeat(40), b"."].concat();
        assert!(groups(&read(&dicts).unwrap()).len() <= 41);
    }

    /// 160 kB that once made over 4 GB: every call copied one long tuple of sizes.
    #[test]
    fn calls_over_one_long_tuple_cost_no_more_than_their_bytes() {
        let start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x01(\x8c\x01sctorch\nFloatStorage\n\x8c\x010\x8c\x03cpuK\x08tQq\x02(";
        let tuple = [&b"K\x01".repeat(30_000)[..], b"tq\x03"].concat();
        let calls = b"h\x01(h\x02K\x00h\x03h\x03tR0".repeat(10_000);
        let pickle = [&start[..], &tuple, &calls, b"N."].concat();
        assert!(Pickle::read(&pickle, &mut Room::of(1 << 30)).unwrap().values.len() < pickle.len());
        assert_eq!(read(&pickle).unwrap_err(), PickleError::NoRoom);
        // The tuple is looked at when somebody asks for the tensor.
        let pickle = [&start[..], &tuple, b"}\x8c\x01xh\x01(h\x02K\x00h\x03h\x03tRs."].concat();
        let pickle = Pickle::read(&pickle, &mut Room::of(1 << 20)).unwrap();
        let found = pickle.dictionaries(&mut Room::of(1 << 20)).unwrap();
        let (_, id) = pickle.tensors(&found[0]).next().unwrap();
        assert_eq!(pickle.tensor(id).unwrap_err(), PickleError::Malformed("a tensor has too many dimensions"));
        // So does a long name that is imported again and again.
        let name = [&b"\x80\x02X"[..], &60_000_u32.to_le_bytes(), &b"a".repeat(60_000), b"q\x00"].concat();
        let pickle = [&name[..], &b"h\x00h\x00\x930".repeat(10_000), b"N."].concat();
        assert_eq!(read(&pickle).unwrap_err(), PickleError::Malformed("the name of an import is too long"));
    }

    #[test]
    fn integers_have_any_width() {
        for (bytes, expected) in [
            (&b"K\xff."[..], 255),
            (b"M\xff\xff.", 65535),
            (b"J\xff\xff\xff\xff.", -1),
            (b"\x8a\x00.", 0),
            (b"\x8a\x02\xff\x7f.", 32767),
            (b"\x8a\x01\x80.", -128),
            (b"\x8b\x05\x00\x00\x00\x00\x00\x00\x00\x01.", 1 << 32),
        ] {
            let pickle = read(bytes).unwrap();
            assert!(matches!(pickle.value(pickle.root), Value::Int(value) if *value == expected), "{bytes:?}");
        }
        let pickle = read(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.").unwrap();
        assert!(matches!(pickle.value(pickle.root), Value::Inert));
    }

    #[test]
    fn nothing_is_called_and_what_is_passed_over_is_named() {
        for (bytes, name) in [
            (&b"cos\nsystem\n\x8c\x04true\x85R."[..], "os.system"),
            (b"cbuiltins\neval\n\x8c\x01a\x85R.", "builtins.eval"),
            (b"\x8c\x08builtins\x8c\x04exec\x93)\x81.", "builtins.exec"),
            (b"ctorch.hub\nload\n)}\x92.", "torch.hub.load"),
        ] {
            assert_eq!(read(bytes).unwrap().passed_over(), [name]);
        }
        // What is often saved beside weights is not worth a word.
        for bytes in [&b"cpathlib\nPosixPath\n)R."[..], b"ccollections\nCounter\n)R.", b"ctorch\nint64\n."] {
            assert!(read(bytes).unwrap().passed_over().is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_pickle_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        /// Instructions that occur, in any order: random bytes seldom get far.
        #[test]
        fn no_order_of_instructions_panics(instructions in prop::collection::vec(
            prop::sample::select(vec![
                &b"("[..], b")", b"}", b"]", b"N", b"K\x02", b"\x8c\x01a", b"\x8c\x05model", b"q\x00", b"q\x01",
                b"h\x00", b"h\x01", b"\x85", b"\x86", b"\x87", b"t", b"l", b"d", b"s", b"u", b"a", b"e", b"b", b"0",
                b"Q", b"R", b"\x81", b"\x93", b"\x94", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x8a\x01\xff",
                b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_parameter\n",
                b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n",
            ]),
            0..60,
        )) {
            if let Ok(pickle) = read(&[instructions.concat(), b".".to_vec()].concat()) {
                for dictionary in pickle.dictionaries(&mut Room::of(1 << 20)).unwrap() {
                    pickle.tensors(&dictionary).for_each(|(_, id)| drop(pickle.tensor(id)));
                }
            }
        }
    }
}
