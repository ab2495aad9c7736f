// Stands in for HIP's <hip/hip_vector_types.h> (vector types) where no ROCm is installed.
#pragma once
#include "../kvc_hip_device.h"
