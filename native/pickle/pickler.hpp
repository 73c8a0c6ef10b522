// Pickles of what state dicts are made of, byte for byte as Python's pickler and torch's reductions write them in
// protocol 2, without Python between one object and the next.
//
// It takes exact dicts, OrderedDicts, lists, tuples, text, numbers, dtypes, and tensors and parameters whose bytes lie
// plainly in a storage. Anything else it leaves to Python and torch.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fastio {

class Pickler {
  public:
    // `names` has what is written for a global (b"cmodule\nname\n"), `storages` the class of a storage by its dtype,
    // `rebuild` the functions that make a tensor and a parameter again. `locate` tells where a storage lies; where
    // `cpu` is not None, it is what `locate` would say of every storage of the CPU.
    Pickler(nanobind::dict names, nanobind::dict storages, nanobind::tuple rebuild, nanobind::object locate,
            nanobind::object cpu);

    // False if the object is not of this kind. What Python raises meanwhile is thrown.
    bool run(nanobind::handle object);

    const std::string& data() const { return data_; }
    // Of each storage, in the order of their keys: the name of its record, itself, its size in bytes.
    nanobind::list storages() const { return found_; }

  private:
    // Names of attributes: made once, for they are looked up of every tensor.
    struct AttributeNames {
        const nanobind::object backward_hooks, cdata, data, data_ptr, dict, dtype, is_conj, is_cpu, is_cuda, is_neg,
            is_nested, is_quantized, itemsize, layout, nbytes, reduce, requires_grad, size, storage, storage_offset,
            stride, untyped_storage;
        AttributeNames();
    };

    bool save(nanobind::handle value);
    bool save_new(nanobind::handle value);
    bool text(nanobind::handle value);
    bool integer(nanobind::handle value);
    void write(int64_t value);
    bool real(nanobind::handle value);
    bool tuple(nanobind::handle value, bool is_shared);
    bool list(nanobind::handle value);
    bool dict(nanobind::handle value);
    bool ordered_dict(nanobind::handle value);
    bool no_hooks();
    bool global(nanobind::handle value);
    bool tensor(nanobind::handle value, bool is_shared);
    bool parameter(nanobind::handle value);
    bool storage(nanobind::handle value, nanobind::handle dtype, bool is_cpu);
    bool is_plain(nanobind::handle value, bool& is_cpu) const;

    void op(uint8_t code) { data_.push_back(static_cast<char>(code)); }
    void number(uint64_t value, size_t nbytes);
    void write_indexed(uint8_t near, uint8_t far, uint64_t index);
    // Around each item of a container: a mark where a batch begins, and what puts it, or the batch, into the container.
    void before_item(Py_ssize_t index, bool is_alone);
    void after_item(Py_ssize_t index, bool is_alone, bool is_last, uint8_t one, uint8_t many);
    // Objects are numbered as they are written. Only those that may be met again are looked for.
    void put(nanobind::handle value);
    void put_new();
    bool get(nanobind::handle value);

    nanobind::dict names_, classes_;
    nanobind::object rebuild_tensor_, rebuild_parameter_, locate_, cpu_;
    nanobind::object ordered_dict_, tensor_, parameter_, dtype_, strided_;
    const AttributeNames attributes_;
    std::string data_;
    std::unordered_map<PyObject*, uint32_t> memo_;
    std::vector<nanobind::object> kept_;                     // as long as their addresses are in the memo
    uint64_t count_ = 0;                                     // of what was numbered
    std::unordered_map<uint64_t, nanobind::object> keys_;    // by the storage's own address
    std::unordered_map<uint64_t, nanobind::object> dtypes_;  // by that of its bytes
    nanobind::list found_;
    unsigned depth_ = 0;
};

}  // namespace fastio
