//! The part of Python's pickle language that PyTorch writes weights in.
//!
//! A pickle is a program for a stack machine that may import and call anything. This reads it without running
//! anything: the few calls that tensors are made of are recognised and recorded, a few harmless classes become
//! [`Value::Inert`], and every other import is refused by name.
//!
//! Values live in one list and refer to each other by number, so that neither deep nesting nor a value that
//! contains itself nor one that is repeated a million times costs more than the bytes that say so.

use std::collections::HashMap;

/// The number of a value.
type Id = usize;

/// A value as far as weights need it.
#[derive(Debug)]
enum Value {
    Int(i64),
    Text(String),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(PickledTensor),
    /// Something that no tensor is made of: none, truth values, floats, lists, bytes, settings.
    Inert,
}

#[derive(Clone, Debug)]
enum Global {
    Dict,
    RebuildTensor,
    RebuildParameter,
    RebuildFromType,
    /// A storage class, such as `FloatStorage`.
    Storage(String),
    Inert,
}

/// Numbers in an entry of the archive.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// PyTorch's name of the number type, such as `FloatStorage`.
    pub(crate) class: String,
    /// Name of the entry.
    pub(crate) key: String,
    /// Numbers in it.
    pub(crate) count: usize,
}

/// A view into a storage. Offset and strides are in numbers.
#[derive(Clone, Debug)]
pub(crate) struct PickledTensor {
    pub(crate) storage: Storage,
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
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
    /// An import of anything that weights are not made of.
    #[error("its pickle asks for {0}")]
    Forbidden(String),
}

type Result<T> = std::result::Result<T, PickleError>;

/// What an import stands for, if it is one of those that weights are made of or that are often saved beside them.
fn global(module: &str, name: &str) -> Result<Global> {
    match (module, name) {
        ("collections", "OrderedDict" | "defaultdict") => Ok(Global::Dict),
        ("torch._utils", "_rebuild_tensor_v2") => Ok(Global::RebuildTensor),
        ("torch._utils", "_rebuild_parameter") => Ok(Global::RebuildParameter),
        ("torch._tensor", "_rebuild_from_type_v2") => Ok(Global::RebuildFromType),
        ("torch", class) if class.ends_with("Storage") => Ok(Global::Storage(class.into())),
        ("torch.nn.parameter", "Parameter" | "Buffer")
        | ("torch", "Size" | "device" | "float32" | "float16" | "bfloat16")
        | ("argparse", "Namespace")
        | ("_codecs", "encode")
        | ("numpy", "dtype")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar")
        | ("builtins" | "__builtin__", "set") => Ok(Global::Inert),
        _ => Err(PickleError::Forbidden(format!("{module}.{name}"))),
    }
}

/// The values of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    /// Reads a pickle of protocol 2 or later.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut machine =
            Machine { bytes, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
        while machine.step()? {}
        let root = machine.pop()?;
        Ok(Self { values: machine.values, root })
    }

    /// The dictionaries that may be the weights: the outermost one, then those under the given keys of it.
    pub(crate) fn candidates(&self, keys: &[&str]) -> Vec<Vec<(&str, &PickledTensor)>> {
        let nested = keys.iter().filter_map(|&key| {
            let found = |&&(name, _): &&(Id, Id)| matches!(&self.values[name], Value::Text(text) if text == key);
            self.entries(self.root).iter().rfind(found).map(|&(_, value)| value)
        });
        std::iter::once(self.root).chain(nested).map(|dict| self.tensors(dict)).collect()
    }

    fn entries(&self, dict: Id) -> &[(Id, Id)] {
        if let Value::Dict(entries) = &self.values[dict] { entries } else { &[] }
    }

    fn tensors(&self, dict: Id) -> Vec<(&str, &PickledTensor)> {
        let tensor = |&(key, value): &(Id, Id)| match (&self.values[key], &self.values[value]) {
            (Value::Text(name), Value::Tensor(tensor)) => Some((name.as_str(), tensor)),
            _ => None,
        };
        self.entries(dict).iter().filter_map(tensor).collect()
    }
}

struct Machine<'a> {
    /// What is still to be read.
    bytes: &'a [u8],
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack where lists of items begin.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl Machine<'_> {
    /// Reads one instruction; whether another follows.
    fn step(&mut self) -> Result<bool> {
        let [instruction] = self.array()?;
        match instruction {
            b'.' => return Ok(false),
            0x80 => drop(self.array::<1>()?), // PROTO
            0x95 => drop(self.array::<8>()?), // FRAME
            b'(' => self.marks.push(self.stack.len()),
            // NONE, NEWTRUE, NEWFALSE, EMPTY_LIST, EMPTY_SET
            b'N' | 0x88 | 0x89 | b']' | 0x8f => self.push(Value::Inert),
            b'G' => {
                self.array::<8>()?;
                self.push(Value::Inert);
            }
            b'K' | b'M' | b'J' | 0x8a | 0x8b => self.integer(instruction)?,
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, BINSTRING, SHORT_BINSTRING
            b'X' | 0x8c | 0x8d | b'T' | b'U' => {
                let text = std::str::from_utf8(self.sized(instruction)?);
                let text = text.map_err(|_| PickleError::Malformed("a text is not UTF-8"))?.to_owned();
                self.push(Value::Text(text));
            }
            // BINBYTES, SHORT_BINBYTES, BINBYTES8
            b'B' | b'C' | 0x8e => {
                self.sized(instruction)?;
                self.push(Value::Inert);
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(instruction)?,
            b')' => self.push(Value::Tuple(Vec::new())),
            0x85..=0x87 => {
                let start = self.height(usize::from(instruction - 0x84))?;
                self.tuple(start);
            }
            b't' => {
                let start = self.mark()?;
                self.tuple(start);
            }
            b'l' => {
                let start = self.mark()?;
                self.stack.truncate(start);
                self.push(Value::Inert);
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b'd' => {
                let start = self.mark()?;
                let items = self.stack.split_off(start);
                self.push(Value::Dict(Vec::new()));
                self.extend(&items)?;
            }
            b's' => {
                let start = self.height(2)?;
                let items = self.stack.split_off(start);
                self.extend(&items)?;
            }
            b'u' => {
                let start = self.mark()?;
                let items = self.stack.split_off(start);
                self.extend(&items)?;
            }
            // APPENDS, ADDITEMS; APPEND, BUILD, POP: what lists hold and what attributes objects have is of no interest.
            b'e' | 0x90 => {
                let start = self.mark()?;
                self.stack.truncate(start);
            }
            b'a' | b'b' | b'0' => drop(self.pop()?),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = global(&module, &name)?;
                self.push(Value::Global(global));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (&self.values[module], &self.values[name]) else {
                    return Err(PickleError::Malformed("an import has no name"));
                };
                let global = global(module, name)?;
                self.push(Value::Global(global));
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(Value::Storage(storage));
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                let result = self.call(callable, arguments)?;
                self.stack.push(result);
            }
            other => return Err(PickleError::Instruction(other)),
        }
        Ok(true)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or(PickleError::Ended)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// Bytes that follow their own number, whose width depends on the instruction.
    fn sized(&mut self, instruction: u8) -> Result<&[u8]> {
        let count = match instruction {
            0x8c | b'U' | b'C' => u8::from_le_bytes(self.array()?) as u64,
            0x8d | 0x8e => u64::from_le_bytes(self.array()?),
            _ => u32::from_le_bytes(self.array()?) as u64,
        };
        self.take(usize::try_from(count).map_err(|_| PickleError::Ended)?)
    }

    fn line(&mut self) -> Result<String> {
        let end = self.bytes.iter().position(|&byte| byte == b'\n').ok_or(PickleError::Ended)?;
        let line = String::from_utf8_lossy(self.take(end)?).into_owned();
        self.array::<1>()?;
        Ok(line)
    }

    /// BININT1, BININT2, BININT, LONG1, LONG4. Integers of more than 64 bits belong to no tensor.
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
        self.push(value);
        Ok(())
    }

    /// The instructions of PUT remember the top of the stack, those of GET push it again.
    fn memo(&mut self, instruction: u8) -> Result<()> {
        let key = match instruction {
            b'q' | b'h' => u8::from_le_bytes(self.array()?) as u32,
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(instruction, b'h' | b'j') {
            let id = self.memo.get(&key).ok_or(PickleError::Malformed("it refers to what was not remembered"))?;
            self.stack.push(*id);
        } else {
            let top = self.stack.last().ok_or(PickleError::Malformed("its stack is empty"))?;
            self.memo.insert(key, *top);
        }
        Ok(())
    }

    fn add(&mut self, value: Value) -> Id {
        self.values.push(value);
        self.values.len() - 1
    }

    fn push(&mut self, value: Value) {
        let id = self.add(value);
        self.stack.push(id);
    }

    /// The height of the stack without its upper `count` values, none of which may lie below a mark.
    fn height(&self, count: usize) -> Result<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let height = self.stack.len().checked_sub(count).filter(|&height| height >= floor);
        height.ok_or(PickleError::Malformed("its stack is empty"))
    }

    fn pop(&mut self) -> Result<Id> {
        self.height(1)?;
        self.stack.pop().ok_or(PickleError::Malformed("its stack is empty"))
    }

    fn mark(&mut self) -> Result<usize> {
        self.marks.pop().ok_or(PickleError::Malformed("it ends a list that it did not begin"))
    }

    fn tuple(&mut self, start: usize) {
        let items = self.stack.split_off(start);
        self.push(Value::Tuple(items));
    }

    /// Adds keys and values in turn to the dictionary on top of the stack.
    fn extend(&mut self, items: &[Id]) -> Result<()> {
        let top = *self.stack.last().ok_or(PickleError::Malformed("its stack is empty"))?;
        let (pairs, rest) = items.as_chunks();
        if !rest.is_empty() {
            return Err(PickleError::Malformed("a dictionary has a key without a value"));
        }
        if let Value::Dict(entries) = &mut self.values[top] {
            entries.extend(pairs.iter().map(|&[key, value]| (key, value)));
        }
        Ok(())
    }

    fn items(&self, tuple: Id) -> &[Id] {
        if let Value::Tuple(items) = &self.values[tuple] { items } else { &[] }
    }

    /// The persistent id `('storage', class, key, device, count)`.
    fn storage(&self, id: Id) -> Result<Storage> {
        if let [_, class, key, _, count] = *self.items(id)
            && let (Value::Global(Global::Storage(class)), Value::Text(key), Value::Int(count)) =
                (&self.values[class], &self.values[key], &self.values[count])
            && let Ok(count) = usize::try_from(*count)
        {
            return Ok(Storage { class: class.clone(), key: key.clone(), count });
        }
        Err(PickleError::Malformed("a storage is not described as PyTorch does"))
    }

    /// What a call would return, of those few that are known.
    fn call(&mut self, callable: Id, arguments: Id) -> Result<Id> {
        let Value::Global(global) = &self.values[callable] else {
            return Err(PickleError::Malformed("it calls what cannot be called"));
        };
        let first = self.items(arguments).first().copied();
        let value = match (global, first) {
            (Global::Dict, _) => Value::Dict(Vec::new()),
            (Global::RebuildTensor, _) => Value::Tensor(self.tensor(arguments)?),
            // Both wrap a tensor: the first one that is made already, the second a call that makes it.
            (Global::RebuildParameter, Some(tensor)) => return Ok(tensor),
            (Global::RebuildFromType, Some(function)) => match (&self.values[function], self.items(arguments).get(2)) {
                (Value::Global(Global::RebuildTensor), Some(&inner)) => Value::Tensor(self.tensor(inner)?),
                _ => return Err(PickleError::Malformed("a tensor is made in an unknown way")),
            },
            (Global::Inert, _) => Value::Inert,
            _ => return Err(PickleError::Malformed("it calls what cannot be called")),
        };
        Ok(self.add(value))
    }

    /// The arguments `(storage, offset, size, stride, ...)`.
    fn tensor(&self, arguments: Id) -> Result<PickledTensor> {
        let sizes = |tuple: Id| self.items(tuple).iter().map(|&id| self.size(id)).collect::<Result<Vec<_>>>();
        if let [storage, offset, shape, strides, ..] = *self.items(arguments)
            && let Value::Storage(storage) = &self.values[storage]
        {
            let (shape, strides) = (sizes(shape)?, sizes(strides)?);
            if shape.len() == strides.len() {
                return Ok(PickledTensor { storage: storage.clone(), offset: self.size(offset)?, shape, strides });
            }
        }
        Err(PickleError::Malformed("a tensor is not described as PyTorch does"))
    }

    fn size(&self, id: Id) -> Result<usize> {
        match self.values[id] {
            Value::Int(size) => usize::try_from(size).map_err(|_| PickleError::Malformed("a size is negative")),
            _ => Err(PickleError::Malformed("a size is not a whole number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn deep_nesting_and_repetition_cost_no_more_than_their_bytes() {
        // A million tuples in each other.
        let deep = [&b"\x80\x02)"[..], &vec![0x85; 1_000_000], b"."].concat();
        assert_eq!(Pickle::read(&deep).unwrap().values.len(), 1_000_001);
        // A tuple of two references to the one before, forty times over: 2^40 values if they were copied.
        let doubling = [&b"\x80\x02)"[..], &b"q\x00h\x00\x86".repeat(40), b"."].concat();
        assert_eq!(Pickle::read(&doubling).unwrap().values.len(), 41);
        // A dictionary that contains itself.
        let own = b"\x80\x02}q\x00\x8c\x05modelh\x00s.";
        let pickle = Pickle::read(own).unwrap();
        assert_eq!(pickle.candidates(&["model"]).len(), 2);
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
            let pickle = Pickle::read(bytes).unwrap();
            assert!(matches!(pickle.values[pickle.root], Value::Int(value) if value == expected), "{bytes:?}");
        }
        let pickle = Pickle::read(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.").unwrap();
        assert!(matches!(pickle.values[pickle.root], Value::Inert));
    }

    #[test]
    fn every_import_but_a_few_is_refused() {
        for (bytes, name) in [
            (&b"cos\nsystem\n."[..], "os.system"),
            (b"cbuiltins\neval\n.", "builtins.eval"),
            (b"\x8c\x08builtins\x8c\x04exec\x93.", "builtins.exec"),
            (b"ctorch.hub\nload\n.", "torch.hub.load"),
        ] {
            assert_eq!(Pickle::read(bytes).unwrap_err(), PickleError::Forbidden(name.into()));
        }
    }

    proptest! {
        #[test]
        fn no_pickle_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Pickle::read(&bytes);
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
            if let Ok(pickle) = Pickle::read(&[instructions.concat(), b".".to_vec()].concat()) {
                pickle.candidates(&["model"]);
            }
        }
    }
}
