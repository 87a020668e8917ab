// Mask recall: sums and means.
#include "distill/evaluation/recall.h"

#include <numeric>

#include "autograd/ops_teacher.h"
#include "tensor/comm/bytes.h"

namespace brine::distill {

double Recall::mean(recall::Way way, int64_t head) const {
  return rows > 0 ? sums[way][size_t(head)] / double(rows) : 0;
}

double Recall::mean(recall::Way way) const {
  const double sum = std::accumulate(sums[way].begin(), sums[way].end(), 0.0);
  return rows > 0 && heads() > 0 ? sum / double(rows) / double(heads()) : 0;
}

Recall& Recall::operator+=(const Recall& other) {
  if (sums[0].empty()) {
    for (auto& way : sums) way.assign(other.sums[0].size(), 0);
  }
  check(heads() == other.heads(), "recall: ", other.heads(), " heads cannot be added to ", heads());
  for (size_t way = 0; way < sums.size(); ++way) {
    for (size_t h = 0; h < sums[way].size(); ++h) sums[way][h] += other.sums[way][h];
  }
  rows += other.rows;
  read += other.read;
  all_rows += other.all_rows;
  return *this;
}

std::string bytes_of(const std::vector<Recall>& layers) {
  ByteWriter out;
  for (const Recall& layer : layers) {
    for (const std::vector<double>& way : layer.sums) out.list(way);
    out.number(layer.rows);
    out.number(layer.read);
    out.number(layer.all_rows);
  }
  return out.bytes();
}

void add_bytes(std::vector<Recall>& layers, const std::string& bytes) {
  ByteReader reader(bytes);
  for (Recall& layer : layers) {
    Recall part;
    for (std::vector<double>& way : part.sums) way = reader.list<double>();
    part.rows = reader.number<int64_t>();
    part.read = reader.number<double>();
    part.all_rows = reader.number<int64_t>();
    if (part.heads() > 0) layer += part;
  }
}

Recall attention_recall(const TeacherAttention& given, const FlatCsr& csr, int64_t K,
                        const Visibility& visible, const SelectConfig& config, int64_t from) {
  const RecallSums got = recall_sums(given, csr, K, visible, config, from);
  const Tensor sums = got.sums.to(Device{});
  Recall out;
  for (int way = 0; way < recall::kWays; ++way) {
    const double* at = sums.data<double>() + way * csr.heads;
    out.sums[size_t(way)].assign(at, at + csr.heads);
  }
  out.rows = got.rows.to(Device{}).data<int64_t>()[0];
  const RowWidths widths(visible, csr.length);
  for (int64_t b = 0; b < csr.batch; ++b) out.all_rows += widths.valid(b);
  const Tensor ends = csr.row_pointers.to(Device{});  // exact on a device, too
  out.read = double(ends.data<int64_t>()[ends.numel() - 1]) / double(csr.heads);
  return out;
}

}  // namespace brine::distill
